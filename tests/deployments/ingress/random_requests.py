"""Requests of which one field has a random size and shape, for tests of what they take."""

import json
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from deployments.ingress.requests.completions import ChatRequest, CompletionRequest
from deployments.ingress.requests.fields import Fields
from deployments.ingress.responses_api.request import ResponsesRequest
from tests.engine.grammar.hostile import SAME_HASH, branches

MOST_BYTES = 4 * 2**20
_MOST_TOKENIZED = 2**16
"""Bytes of fields that are tokenized: a megabyte takes seconds of a thread."""

KINDS: dict[str, tuple[type[Fields], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"model": "target", "prompt": "Hi", "max_tokens": 4}),
    "/v1/chat/completions": (
        ChatRequest,
        {"model": "target", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    ),
    "/v1/responses": (
        ResponsesRequest,
        {"model": "target", "input": "Hi", "max_output_tokens": 4},
    ),
}
_TOKENIZED = {"prompt", "messages", "input", "instructions", "tools"}


class Shape(NamedTuple):
    """Something that is repeated, `n` its number and `hash` a number of the same hash as others,
    between a begin and an end. In a text nothing is between the pieces, else commas."""

    begin: str
    piece: str
    end: str
    most: int = MOST_BYTES
    """Pieces."""

    def write(self, size: int) -> str:
        longest = len((self.piece % {"n": 10**6, "hash": 10**6 * SAME_HASH}).encode()) + 1
        count = min(self.most, size // longest + 1)
        pieces = (self.piece % {"n": n, "hash": n * SAME_HASH} for n in range(count))
        return self.begin + ("" if self.begin.endswith('"') else ",").join(pieces) + self.end


_SCHEMA = '"properties":{'
_PROPERTY = '"%(n)d":{"type":"string","description":"xxxxxxxxxxxx"}'
_CALL = '{"id":"a","function":{"name":"f","arguments":"[[],[]]"}}'
_FUNCTION = '{"type":"function","name":"f%(n)d","function":{"name":"f%(n)d","parameters":{}}}'
IDS = Shape("[", "%(n)d", "]", 400)
ANY = (
    *(
        Shape('"', piece, '"')
        for piece in ("a", "ab c", "é", "漢", "[{:,", r"\"", r"\n", r"\ud800")
    ),
    *(Shape("[", piece, "]") for piece in ('"%(n)d"', f'"{"x" * 1000}"', "%(n)d", "%(hash)d")),
    *(Shape("[", piece, "]") for piece in ("[]", "{}", '{"a":0}', "null", "1.5", "NaN", "1e999")),
    *(Shape("{", f'"%(n)d":{value}', "}") for value in ("0", "[]", "null")),
    *(Shape("[" * depth, "0", "]" * depth) for depth in (127, 900, 100_000)),
    Shape("", "9" * 4000, "", 1),
    Shape("", json.dumps(branches()), "", 1),
)
OF_FIELD: dict[str, tuple[Shape, ...]] = {
    "prompt": (IDS, Shape("[", "[1,2,3]", "]", 8), Shape('["', "a ", '"]')),
    "messages": (
        Shape("[", '{"role":"user","content":"a"}', "]"),
        Shape('[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]"),
        Shape('[{"role":"assistant","tool_calls":[', _CALL, "]}]"),
    ),
    "input": (
        Shape("[", '{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}', "]"),
        Shape('[{"role":"user","content":[', '{"type":"input_text","text":"a"}', "]}]"),
    ),
    "tools": (
        Shape("[", _FUNCTION, "]"),
        Shape(
            f'[{{"type":"function","name":"f","function":{{"name":"f","parameters":{{{_SCHEMA}',
            _PROPERTY,
            "}}}}]",
        ),
    ),
    "text": (Shape(f'{{"format":{{"type":"json_schema","schema":{{{_SCHEMA}', _PROPERTY, "}}}}"),),
    "response_format": (
        Shape(
            f'{{"type":"json_schema","json_schema":{{"name":"a","schema":{{{_SCHEMA}',
            _PROPERTY,
            "}}}}",
        ),
    ),
    "structured_outputs": (
        Shape(f'{{"json":{{{_SCHEMA}', _PROPERTY, "}}}"),
        *(Shape(f'{{"{kind}":"', "a", '"}') for kind in ("regex", "grammar")),
        Shape('{"choice":[', '"%(n)d"', "]}"),
    ),
    "stop": (Shape('["', "a", '"]'),),
    "logit_bias": (Shape("{", '"%(n)d":1', "}", 1000),),
    "stop_token_ids": (IDS,),
}
"""How a field may be meant, beside what it is not."""


class RandomRequest(NamedTuple):
    path: str
    field: str
    shape: Shape
    body: bytes

    def __str__(self) -> str:
        piece = self.shape.begin[:40] + self.shape.piece[:40]
        return f"{self.path}: {self.field} of {piece}, {len(self.body)} bytes"


def requests(count: int, seed: int = 0) -> Iterator[RandomRequest]:
    """Requests with each field in turn."""
    rng = random.Random(seed)
    places = [
        (path, name)
        for path, (kind, _) in KINDS.items()
        for name in (*(one.alias or name for name, one in kind.model_fields.items()), "unknown")
    ]
    for number in range(count):
        path, name = places[number % len(places)]
        yield _request(path, name, rng)


def _request(path: str, name: str, rng: random.Random) -> RandomRequest:
    most = _MOST_TOKENIZED if name in _TOKENIZED else MOST_BYTES - 1000
    size = int(math.exp(rng.uniform(0, math.log(most))))
    own = OF_FIELD.get(name, ())
    shape = rng.choice(own if own and rng.random() < 0.6 else ANY)
    fields = {**KINDS[path][1]}
    if name == "messages":
        fields.pop("prompt", None)
    fields.pop(name, None)
    if rng.random() < 0.2:
        fields["stream"] = True
    others = json.dumps(fields)[1:]
    return RandomRequest(path, name, shape, f'{{"{name}":{shape.write(size)},{others}'.encode())

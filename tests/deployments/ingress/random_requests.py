"""Requests of which one field has a random size and shape, for tests of what they take."""

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from deployments.ingress.requests.completions import ChatRequest, CompletionRequest
from deployments.ingress.requests.fields import Fields
from deployments.ingress.requests.tokenization import DetokenizeRequest, TokenizeRequest
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
    "/tokenize": (TokenizeRequest, {"model": "target", "prompt": "Hi"}),
    "/detokenize": (DetokenizeRequest, {"model": "target", "tokens": [5]}),
}
_TOKENIZED = {"prompt", "messages", "input", "instructions", "tools", "bad_words"}


class RandomRequest(NamedTuple):
    path: str
    field: str
    shape: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.path}: {self.field} as {self.shape}, {len(self.body)} bytes"


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
    shape = rng.choice([*own, *own, *SHAPES]) if own else rng.choice(SHAPES)
    fields = {**KINDS[path][1]}
    if name == "messages":
        fields.pop("prompt", None)
    fields.pop(name, None)
    if rng.random() < 0.2:
        fields["stream"] = True
    others = json.dumps(fields)[1:]
    return RandomRequest(
        path, name, shape.__name__, f'{{"{name}":{shape(size, rng)},{others}'.encode()
    )


def _list(item: Callable[[int], str], size: int, most: int = MOST_BYTES) -> str:
    items: list[str] = []
    written = 0
    while written < size and len(items) < most:
        items.append(item(len(items)))
        written += len(items[-1]) + 1
    return f"[{','.join(items)}]"


def text(size: int, rng: random.Random) -> str:
    piece = rng.choice(["a", "ab c", " ", "é", "漢", "🙂", "[{:,", r"\"", r"\\", r"\n", r"\ud800"])
    return f'"{piece * (size // len(piece.encode()))}"'


def texts(size: int, rng: random.Random) -> str:
    length = rng.choice([0, 1, 10, 1000])
    return _list(lambda number: f'"{number:0{length}}"', size)


def numbers(size: int, rng: random.Random) -> str:
    step = rng.choice([0, 1, 2**14, 2**32, SAME_HASH])
    return _list(lambda number: str(step * (number + 1)), size)


def special_numbers(size: int, rng: random.Random) -> str:
    special = ["-1", "1.5", "-0.0", "1e308", "1e999", "NaN", "-Infinity", "2.5e-308", "9" * 900]
    one = rng.choice([*special, "9" * 4000])
    return one if rng.random() < 0.2 else _list(lambda _: one, size)


def lists(size: int, rng: random.Random) -> str:
    inner = rng.choice(["[]", "{}", "[0]", '{"a":0}', "null", "true", '""'])
    return _list(lambda _: inner, size)


def members(size: int, rng: random.Random) -> str:
    value = rng.choice(["0", "[]", '""', "null"])
    return "{" + _list(lambda number: f'"{number}":{value}', size)[1:-1] + "}"


def nested(size: int, rng: random.Random) -> str:
    depth = min(size // 10 + 1, rng.choice([10, 127, 300, 900, 100_000]))
    begin, end = rng.choice([("[", "]"), ('{"a":', "}"), ("[[],", "]")])
    return begin * depth + "0" + end * depth


def schema(size: int, rng: random.Random) -> str:
    """Whose branches list values that have the same hash."""
    return json.dumps(branches(rng.choice([1, SAME_HASH]), size // 50 + 1), separators=(",", ":"))


def large_schema(size: int, rng: random.Random) -> str:
    described = f'{{"type":"string","description":"{"x" * rng.choice([0, 10, 1000])}"}}'
    properties = _list(lambda number: f'"{number}":{described}', size)[1:-1]
    return f'{{"type":"object","properties":{{{properties}}}}}'


def _schema(size: int, rng: random.Random) -> str:
    return rng.choice([schema, large_schema, members, lists])(size, rng)


def response_format(size: int, rng: random.Random) -> str:
    return f'{{"type":"json_schema","json_schema":{{"name":"a","schema":{_schema(size, rng)}}}}}'


def text_format(size: int, rng: random.Random) -> str:
    given = _schema(size, rng)
    return f'{{"format":{{"type":"json_schema","name":"a","schema":{given}}}}}'


def structured_outputs(size: int, rng: random.Random) -> str:
    kind = rng.choice(["json", "regex", "grammar", "choice"])
    value = {"json": _schema, "choice": texts}.get(kind, text)(size, rng)
    return f'{{"{kind}":{value}}}'


def tools(size: int, rng: random.Random) -> str:
    """Fields of chats, and then of responses."""
    count = rng.choice([1, 10, 127])

    def tool(number: int) -> str:
        given = _schema(size // count, rng)
        function = f'"name":"f{number}","parameters":{given}'
        return f'{{"type":"function","function":{{{function}}},{function}}}'

    return _list(tool, size, count)


def messages(size: int, rng: random.Random) -> str:
    part = f'{{"type":"text","text":{text(rng.choice([1, 1, 1000]), rng)}}}'
    content = _list(lambda _: part, min(size, rng.choice([20, 100_000])))
    call = '{"id":"a","function":{"name":"f","arguments":"[[],[],{}]"}}'
    calls = _list(lambda _: call, min(size, rng.choice([20, 100_000])))
    user = f'{{"role":"user","content":{content}}}'
    assistant = f'{{"role":"assistant","tool_calls":{calls}}}'
    return _list(lambda number: (user, assistant)[number % 2], size)


def items(size: int, rng: random.Random) -> str:
    part = f'{{"type":"input_text","text":{text(1, rng)},"annotations":[{{}}]}}'
    content = _list(lambda _: part, min(size, rng.choice([20, 100_000])))
    user = f'{{"role":"user","content":{content}}}'
    call = '{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}'
    return _list(lambda number: (user, call)[number % 2], size)


def token_ids(size: int, rng: random.Random) -> str:
    return _list(lambda number: str(number % 2000), size, rng.choice([400, MOST_BYTES]))


def token_lists(size: int, rng: random.Random) -> str:
    return _list(lambda _: token_ids(min(size, 1000), rng), size, rng.choice([8, 3000]))


def biases(size: int, rng: random.Random) -> str:
    written = _list(lambda number: f'"{number % 2000}":1', size, rng.choice([1000, MOST_BYTES]))
    return "{" + written[1:-1] + "}"


def long_texts(size: int, rng: random.Random) -> str:
    return _list(lambda _: text(size // 4, rng), size, 4)


SHAPES = (text, texts, numbers, special_numbers, lists, members, nested, schema)
OF_FIELD: dict[str, tuple[Callable[[int, random.Random], str], ...]] = {
    "prompt": (text, texts, token_ids, token_lists),
    "messages": (messages, messages),
    "input": (items, items),
    "tokens": (token_ids,),
    "tools": (tools, tools),
    "text": (text_format, text_format),
    "response_format": (response_format, response_format),
    "structured_outputs": (structured_outputs, structured_outputs),
    "stop": (long_texts, text),
    "bad_words": (texts,),
    "logit_bias": (biases,),
    "allowed_token_ids": (token_ids,),
    "stop_token_ids": (token_ids,),
    "metadata": (members,),
    "chat_template_kwargs": (members,),
}
"""How a field may be meant, beside what it is not."""

"""Other services call the application, by handle and by gRPC. Processes that lack our code:
tests/deployments/test_documented.py."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from ray import serve

from tests.deployments.served.application import GRPC_PORT
from tests.deployments.serving import KEY_FROM_ENVIRONMENT as KEY
from tests.deployments.serving import PROMPT, eventually, expected_text, is_idle

pytestmark = [
    pytest.mark.parametrize("app", ["native"], indirect=True),
    pytest.mark.usefixtures("app"),
]
FIELDS: dict[str, Any] = {"model": "target", "prompt": PROMPT, "max_tokens": 24}
SEED = 2**63 + 5
"""More than a double can represent."""


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{GRPC_PORT}") as opened:
        yield opened


def call(channel: grpc.Channel, kind: str, method: str, fields: Any, key: str = KEY) -> Any:
    caller = getattr(channel, kind)(
        f"/spindle.Spindle/{method}", StringValue.SerializeToString, StringValue.FromString
    )
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return caller(
        StringValue(value=text), timeout=60, metadata=[("authorization", f"Bearer {key}")]
    )


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def test_grpc_answers_as_http_and_keeps_all_bits_of_a_seed(channel: grpc.Channel) -> None:
    asked = {**FIELDS, "seed": SEED, "temperature": 1.0}
    whole = json.loads(call(channel, "unary_unary", "Generate", asked).value)
    assert whole["choices"][0]["text"] == expected_text(1.0, SEED, 24)
    assert whole["choices"][0]["spindle"]["seed"] == SEED
    chunks = [json.loads(one.value) for one in call(channel, "unary_stream", "Stream", asked)]
    assert text(chunks) == expected_text(1.0, SEED, 24)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


ENDLESS = {**FIELDS, "max_tokens": 1900, "ignore_eos": True}


def test_a_caller_by_handle_that_goes_away_frees_its_kv() -> None:
    stream = serve.get_app_handle("spindle").options(stream=True).stream.remote(ENDLESS)
    next(iter(stream))
    stream.cancel()
    eventually(is_idle, "KV of a caller that went away is free", within_s=2)


def test_a_caller_by_grpc_that_goes_away_frees_its_kv(channel: grpc.Channel) -> None:
    for _ in range(8):
        stream = call(channel, "unary_stream", "Stream", ENDLESS)
        next(iter(stream))
        stream.cancel()
    eventually(is_idle, "KV of callers that went away is free", within_s=5)

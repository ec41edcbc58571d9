"""A head that learns from traffic, as served: streams are the target's own while its versions
change.

It takes two minutes, because only a whole application shows that versions reach its lanes.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serving.stream_identity import StreamIdentity
from benchmarks.serving.streams import ReceivedStream, read_all
from tests.actors.hosts.test_fleet import write_random_head
from tests.deployments.serving import ARGS, URL, application, tokenizer

QUESTIONS = ["Count to 7.", "Count to 12.", "What is the capital of France?", "Say hello."]
STREAMS = 32
KEY = {"Authorization": "Bearer key-of-alpha"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("learned") / "versions"


@pytest.fixture(scope="module", autouse=True)
def _app(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    head = write_random_head(tmp_path_factory.mktemp("head")).model_dump(exclude_unset=True)
    learn = {"share": 1.0, "folder": str(folder), "tenants": ["alpha"]}
    keys = {"alpha": "key-of-alpha", "beta": "key-of-beta"}
    learning = {**ARGS, "drafters": [{**head, "learn": learn}], "api_keys": keys}
    with application({**learning, "operators": ["*"], "limits": {"client_share": 1.0}}):
        yield


@pytest.fixture(scope="module")
def expected() -> list[ReceivedStream]:
    return stream(speculation="off")


def bodies(**changes: Any) -> list[dict[str, Any]]:
    prompts = [
        tokenizer()(f"<|user|>{question}<|end|><|assistant|>")["input_ids"]
        for question in QUESTIONS
    ]
    return [
        {
            "model": "target",
            "prompt": prompts[number % len(prompts)],
            "max_tokens": 64,
            "temperature": number % 2,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            **changes,
        }
        for number in range(STREAMS)
    ]


def stream(**changes: Any) -> list[ReceivedStream]:
    return asyncio.run(read_all(URL, bodies(**changes), 120, headers=KEY))


@cache
def compare() -> StreamIdentity:
    return StreamIdentity()


def check(received: Sequence[ReceivedStream], expected: Sequence[ReceivedStream]) -> None:
    identity = compare()
    for body, one, undisturbed in zip(bodies(), received, expected, strict=True):
        assert identity(body, undisturbed, one) is not None


def metric(name: str) -> float:
    """The sum of its series."""
    text = httpx.get(f"{URL}/metrics", headers=KEY).text
    found = re.findall(rf"^spindle_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def learn_until(holds: Callable[[], bool], expected: Sequence[ReceivedStream], what: str) -> None:
    for _ in range(60):
        check(stream(), expected)
        if holds():
            return
    raise AssertionError(f"not after 60 rounds: {what}")


def test_versions_are_learned_and_served_under_load(expected: list[ReceivedStream]) -> None:
    assert metric("learned_version") == 0
    learn_until(lambda: metric("learned_version") > 0, expected, "a version is served by all")
    drafted = stream()
    check(drafted, expected)
    accepted = sum(one.statistics["accepted"] for one in drafted if one.statistics)
    assert accepted > STREAMS, "what was learned is of use"

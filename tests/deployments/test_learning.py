"""A head that learns from traffic, as served: streams are the target's own while its versions
change, whatever becomes of the trainer.

It takes a minute or two, because only real processes can be killed and stopped.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import httpx
import pytest
from ray._private import state as ray_state

from benchmarks.serving.stream_identity import StreamIdentity
from benchmarks.serving.streams import ReceivedStream, read_all
from tests.actors.hosts.test_fleet import write_random_head
from tests.deployments.serving import ARGS, URL, application, eventually, tokenizer

QUESTIONS = ["Count to 7.", "Count to 12.", "What is the capital of France?", "Say hello."]
STREAMS = 32
TWO_REPORTS_S = 12
KEY = {"Authorization": "Bearer key-of-alpha"}
UNNAMED = {"Authorization": "Bearer key-of-beta"}


@pytest.fixture(scope="module", autouse=True)
def _app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    head = write_random_head(tmp_path_factory.mktemp("head")).model_dump(exclude_unset=True)
    learn = {"share": 1.0, "folder": str(tmp_path_factory.mktemp("learned")), "tenants": ["alpha"]}
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


def stream(
    progress: Callable[[Sequence[ReceivedStream]], None] = lambda _streams: None,
    headers: dict[str, str] = KEY,
    **changes: Any,
) -> list[ReceivedStream]:
    return asyncio.run(read_all(URL, bodies(**changes), 120, progress, headers))


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


def trainer() -> int:
    """The process of the present trainer; 0 while there is none."""
    pids = [
        int(actor["Pid"])
        for actor in ray_state.actors(actor_state_name="ALIVE").values()
        if actor["ActorClassName"].endswith("TrainerActor")
    ]
    return pids[0] if pids else 0


def learn_until(holds: Callable[[], bool], expected: Sequence[ReceivedStream], what: str) -> None:
    for _ in range(60):
        check(stream(), expected)
        if holds():
            return
    raise AssertionError(f"not after 60 rounds: {what}")


def test_who_has_not_agreed_teaches_nothing() -> None:
    """The first test here: nothing has been learned yet."""
    stream(store=False)
    stream(headers=UNNAMED)
    time.sleep(TWO_REPORTS_S)
    assert metric("lessons_total") == metric("learned_version") == 0
    stream()
    eventually(lambda: metric("lessons_total") > 0, "those who have do")


def test_versions_are_learned_and_served_under_load(expected: list[ReceivedStream]) -> None:
    learn_until(lambda: metric("learned_version") > 0, expected, "a version is served by all")
    shown = httpx.get(f"{URL}/spindle/live", headers=KEY).json()["replicas"][0]["learning"]
    assert shown["drafter"] == "head"
    assert shown["version"] > 0
    drafted = stream()
    check(drafted, expected)
    accepted = sum(one.statistics["accepted"] for one in drafted if one.statistics)
    assert accepted > STREAMS, "what was learned is of use"


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_do_not_notice(fault: signal.Signals, expected: list[ReceivedStream]) -> None:
    """Faults of the disk: tests/actors/learning/test_trainer.py."""
    eventually(lambda: trainer() > 0, "there is a trainer", 60)
    victim, struck = trainer(), 0

    def strike(received: Sequence[ReceivedStream]) -> None:
        nonlocal struck
        if not struck and sum(len(one.token_ids) for one in received) >= 8 * STREAMS:
            struck = sum(not one.complete for one in received)
            os.kill(victim, fault)

    check(stream(strike), expected)
    assert struck > STREAMS // 2, "the fault came too late"
    if fault == signal.SIGSTOP:
        os.kill(victim, signal.SIGCONT)  # Serve would replace it in two minutes
    else:
        eventually(lambda: trainer() not in (0, victim), "another trainer is there", 90)
    before = metric("learned_tokens")
    learn_until(lambda: metric("learned_tokens") not in (0, before), expected, "it learns again")

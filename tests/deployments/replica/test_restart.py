"""The only replica dies: its successor serves before its drafter is loaded, and says so."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray._private import state as ray_state

from tests.deployments.serving import (
    ARGS,
    SEED,
    URL,
    application,
    eventually,
    expected_ids,
    read_to_end,
    replicas,
    request,
    tokens,
)

DRAFTER = {"name": "tiny", "model": "zoo/tiny", "placement": "actor", "cpus": 0.05}
ARGS = {**ARGS, "drafters": [DRAFTER, {"name": "ngram", "kind": "ngram"}]}


@pytest.fixture(scope="module", autouse=True)
def _app() -> Iterator[None]:
    with application(ARGS):
        yield


def state() -> dict[str, Any]:
    return replicas().state.remote().result(timeout_s=10)


def read(name: str) -> list[dict[str, Any]]:
    stream = replicas().options(stream=True).stream.remote(request(name))
    first = next(stream)
    return read_to_end(stream, name, first["replica"])


def down_metric() -> bool:
    lines = httpx.get(f"{URL}/metrics", timeout=10).text.splitlines()
    return any(
        "_down{" in line and 'host="tiny"' in line and line.endswith(" 1.0") for line in lines
    )


def test_the_successor_of_the_only_replica_serves_before_its_drafter_is_loaded() -> None:
    first = state()
    assert first["down"] == [], "the first replica has waited for its drafter"
    assert httpx.get(f"{URL}/health", timeout=10).json() == {"status": "ok"}
    (replica,) = (
        actor["Pid"]
        for actor in ray_state.actors(actor_state_name="ALIVE").values()
        if actor["ActorClassName"] == "ServeReplica:spindle:Replica"
    )
    os.kill(replica, signal.SIGKILL)
    health: list[dict[str, Any]] = []

    def answers() -> bool:
        answer = httpx.get(f"{URL}/health", timeout=10)
        if answer.is_success and state()["replica"] != first["replica"]:
            health.append(answer.json())
        return bool(health)

    eventually(answers, "the next replica serves", within_s=90)
    assert health == [{"status": "ok", "drafters_down": 1}]
    assert state()["down"] == ["tiny"]
    assert down_metric()
    assert tokens(read("early")) == expected_ids(1.0, SEED, 40)
    eventually(lambda: state()["down"] == [], "the drafter is loaded", within_s=60)
    assert httpx.get(f"{URL}/health", timeout=10).json() == {"status": "ok"}
    assert not down_metric()
    messages = read("later")
    assert tokens(messages) == expected_ids(1.0, SEED, 40)
    assert messages[-1]["statistics"]["by_lane"]["tiny"] > 0

"""The only replica dies: its successor serves before its drafter is loaded, and reports it."""

import os
import signal
from typing import Any

import httpx
import pytest

from tests.deployments.replica.served import read, replica_pid, state
from tests.deployments.serving import SEED, URL, eventually, expected_ids, tokens


def down_metric() -> bool:
    lines = httpx.get(f"{URL}/metrics", timeout=10).text.splitlines()
    return any(
        "_down{" in line and 'host="tiny"' in line and line.endswith(" 1.0") for line in lines
    )


@pytest.mark.usefixtures("app")
def test_the_successor_of_the_only_replica_serves_before_its_drafter_is_loaded() -> None:
    eventually(lambda: state()["down"] == [], "the drafter is loaded", within_s=60)
    first = state()
    assert httpx.get(f"{URL}/health", timeout=10).json() == {"status": "ok", "drafters_down": 0}
    os.kill(replica_pid(), signal.SIGKILL)
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
    assert httpx.get(f"{URL}/health", timeout=10).json() == {"status": "ok", "drafters_down": 0}
    assert not down_metric()
    messages = read("later")
    assert tokens(messages) == expected_ids(1.0, SEED, 40)
    assert messages[-1]["statistics"].by_lane["tiny"] > 0

"""The stop of `serve run` when its drain fails or has nothing to wait for; test_app.py stops
a real one."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import ray
from ray import serve

from deployments import stopping


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[stopping._Stop]:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    stop = stopping._Stop()
    before = signal.signal(signal.SIGINT, stop)
    yield stop
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("states", "waits"),
    [(["RUNNING"], True), (["RECOVERING"], True), (["STARTING"], False), ([], False)],
)
def test_only_an_ingress_that_serves_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, states: list[str], waits: bool
) -> None:
    """A call to one that cannot start would never return."""
    deployments = {
        name: SimpleNamespace(replica_states=dict.fromkeys(states, 1))
        for name in ("Ingress", "Replica")
    }
    status = SimpleNamespace(applications={"one": SimpleNamespace(deployments=deployments)})
    drained: list[str] = []

    async def note(applications: list[str]) -> None:
        drained.extend(applications)

    monkeypatch.setattr(serve, "status", lambda: status)
    monkeypatch.setattr(stopping, "_drain", note)
    stopping.drain()
    assert drained == (["one"] if waits else [])


def test_an_ingress_that_is_lost_does_not_cut_off_other_applications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    async def drained(name: str) -> None:
        if name == "lost":
            raise RuntimeError(name)
        await asyncio.sleep(0.05)
        ended.append(name)

    def handle(_ingress: str, name: str) -> SimpleNamespace:
        return SimpleNamespace(drain=SimpleNamespace(remote=lambda: drained(name)))

    monkeypatch.setattr(stopping, "DeploymentHandle", handle)
    with pytest.raises(RuntimeError, match="lost"):
        asyncio.run(stopping._drain(["lost", "one"]))
    assert ended == ["one"]


def test_a_call_that_is_cancelled_ends_serve_run(
    stop: stopping._Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(_applications: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(stopping, "drain", lambda: asyncio.run(cancelled([])))
    with pytest.raises(KeyboardInterrupt):
        _wait_after_signal()


def test_after_a_second_signal_the_end_is_not_interrupted(
    stop: stopping._Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(stopping, "drain", ended.wait)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    ended.set()  # as the drain fails when Serve ends
    assert stop._draining is not None
    try:
        stop._draining.join(5)
        time.sleep(0.1)
    except KeyboardInterrupt:
        pytest.fail("it was interrupted")


MESSAGE = """Deploying app 'spindle' failed with exception:
Traceback (most recent call last):
  File "deployments/app.py", line 55, in build
RuntimeError: the first

Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: 1 validation error for AppConfig
target.nonsense
  Extra inputs are not permitted
    For further information visit https://errors.pydantic.dev/
"""
REFUSED = SimpleNamespace(status="DEPLOY_FAILED", message=MESSAGE, deployments={})
FAILED = SimpleNamespace(
    status="DEPLOY_FAILED",
    message="Failed to update the deployments ['Replica'].",
    deployments={
        "Ingress": SimpleNamespace(status="HEALTHY", message=""),
        "Replica": SimpleNamespace(status="DEPLOY_FAILED", message="3 times:\nOSError: no weights"),
    },
)
STARTS = SimpleNamespace(status="DEPLOYING", message="", deployments={})
RUNS = SimpleNamespace(status="RUNNING", message="", deployments={})


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            [[], [STARTS], [REFUSED]],
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for AppConfig "
            "target.nonsense Extra inputs are not permitted",
        ),
        ([[STARTS], [FAILED]], "OSError: no weights"),
        ([[REFUSED, STARTS], [REFUSED, RUNS]], ""),
        ([[RUNS]], ""),
    ],
)
def test_serve_run_ends_when_nothing_can_be_served(
    monkeypatch: pytest.MonkeyPatch, seen: list[list[SimpleNamespace]], reason: str
) -> None:
    left = iter(seen)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(stopping, "_POLL_S", 0)
    monkeypatch.setattr(
        serve, "status", lambda: SimpleNamespace(applications=dict(enumerate(next(left))))
    )
    assert stopping._refusal() == reason


def _wait_after_signal() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(5)

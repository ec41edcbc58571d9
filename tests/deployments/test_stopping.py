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


def _wait_after_signal() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(5)

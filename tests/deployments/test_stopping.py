"""The stop of `serve run` when its drain fails; tests/deployments/test_operating.py stops a real
one."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import ray

from deployments import stopping


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[stopping._Stop]:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    stop = stopping._Stop()
    before = signal.signal(signal.SIGINT, stop)
    yield stop
    signal.signal(signal.SIGINT, before)


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

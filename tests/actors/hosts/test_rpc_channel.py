"""A connection to a worker: answers in order, errors unchanged, and losses noticed at once."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pickle import PicklingError

import pytest

from actors.hosts import rpc_channel
from actors.hosts.protocol import HostLost
from actors.hosts.rpc_channel import Listener, RpcChannel, WorkerFailed, connect
from engine.errors import IncompatibleDrafter, RankLost

pytestmark = pytest.mark.usefixtures("loop")


class Worker:
    def __init__(self) -> None:
        self.called: list[object] = []

    def echo(self, content: object, seconds: float = 0.0) -> object:
        time.sleep(seconds)
        self.called.append(content)
        return content

    def refuse(self) -> None:
        raise IncompatibleDrafter("tiny", "vocab_size", "97 tokens")

    def lose_a_rank(self) -> None:
        raise RankLost("rank 1 is gone")

    def fail(self) -> None:
        raise IndexError("out of range")


def serving(worker: object) -> tuple[Listener, threading.Thread]:
    listener = Listener("127.0.0.1")
    thread = threading.Thread(target=listener.serve, args=[worker], daemon=True)
    thread.start()
    return listener, thread


@asynccontextmanager
async def connected(worker: object) -> AsyncIterator[RpcChannel]:
    listener, thread = serving(worker)
    caller = await connect(listener.address)
    yield caller
    caller.close(HostLost("the test is over"))
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive(), "it still serves after the end of its connection"


async def test_answers_of_any_size_match_their_calls_in_order() -> None:
    contents: list[object] = [b"a" * 5_000_000, "b", [], b"c" * 100_000, None]
    worker = Worker()
    async with connected(worker) as caller:
        answers = await asyncio.gather(*(caller.call("echo", one) for one in contents))
    assert answers == contents
    assert worker.called == contents


async def test_the_answer_to_a_cancelled_call_is_dropped() -> None:
    async with connected(Worker()) as caller:
        gone = asyncio.create_task(caller.call("echo", "first", 0.2))
        await asyncio.sleep(0.05)
        gone.cancel()
        assert await caller.call("echo", "second") == "second"


async def test_a_call_that_cannot_be_sent_leaves_the_next_one_its_answer() -> None:
    async with connected(Worker()) as caller:
        with pytest.raises((AttributeError, PicklingError)):
            await caller.call("echo", lambda: None)
        async with asyncio.timeout(2):
            assert await caller.call("echo", 7) == 7


async def test_errors_of_the_worker_are_raised_and_the_connection_stays() -> None:
    async with connected(Worker()) as caller:
        with pytest.raises(IncompatibleDrafter, match="97 tokens") as refused:
            await caller.call("refuse")
        assert refused.value.field == "vocab_size"
        with pytest.raises(WorkerFailed, match=r"in fail\n.*\nIndexError: out of range"):
            await caller.call("fail")
        with pytest.raises(HostLost, match="rank 1 is gone"):
            await caller.call("lose_a_rank")
        assert await caller.call("echo", 7) == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_loss_raises_in_all_waiting_and_later_calls_at_once() -> None:
    class Dying:
        def die(self) -> None:
            raise SystemExit

    async with connected(Dying()) as caller:
        waiting = [asyncio.create_task(caller.call("die")) for _ in range(3)]
        async with asyncio.timeout(2):
            errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, HostLost) for error in errors)
        with pytest.raises(HostLost, match="connection to it ended"):
            await caller.call("die")


async def test_only_a_peer_with_the_secret_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_channel, "_GREETING_S", 0.2)
    worker = Worker()
    listener, thread = serving(worker)
    address = listener.address
    wrong = await connect(replace(address, secret=bytes(len(address.secret))))
    with pytest.raises(HostLost):
        await wrong.call("echo", "wrong")
    with socket.create_connection((address.host, address.port)):  # sends nothing
        right = await connect(address)
        assert await right.call("echo", "right") == "right"
    assert worker.called == ["right"]
    right.close(HostLost("the test is over"))
    await asyncio.to_thread(thread.join, 5)
    with pytest.raises(HostLost, match="must reach each other on all ports"):
        await connect(address)  # the listener is closed

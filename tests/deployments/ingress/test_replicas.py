"""Readiness with replicas that hang, are slow or are lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError

from deployments.ingress import replicas as replicas_module
from deployments.ingress.errors import ApiError
from deployments.ingress.failover import FailoverStream
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.replicas import ClockWatch, Readiness
from deployments.messages import Heartbeat, Routed, StreamRequest
from engine.request import TargetLimits
from tests.deployments.local import CONTEXT, VOCAB, Handle, make_config

Answer = Callable[[], Awaitable[object]]
"""What a replica does before it answers."""


class Replicas(Handle):
    """Behind a router that takes the first one that is not avoided."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.called: list[str] = []
        self.heartbeats = 0

    async def _describe(self, call_args: Routed) -> dict[str, Any]:
        responsive = [name for name in self.answers if name not in call_args["avoid"]]
        name = (responsive or list(self.answers))[0]
        call_args["routed_to"] = name
        self.called.append(name)
        await self.answers[name]()
        return await super()._describe(call_args)

    async def _heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats += 1
        await self.answers[heartbeat["replica"]]()


async def healthy() -> None:
    pass


async def gone() -> None:
    raise RayActorError


async def cancelled_by_serve() -> None:
    raise asyncio.CancelledError


async def slow() -> None:
    await asyncio.sleep(0.05)


async def hanging() -> None:
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_NEXT_CALL_S", 0.02)


@asynccontextmanager
async def heartbeats_to(
    replicas: Replicas, on_lost: Callable[[], None] = lambda: None
) -> AsyncIterator[HeartbeatSender]:
    limits = make_config(limits={"silent_replica_s": 0.1}).limits
    heartbeats = HeartbeatSender("ingress", replicas, limits, on_lost)
    try:
        yield heartbeats
    finally:
        heartbeats.close()


async def check(replicas: Replicas) -> TargetLimits:
    async with heartbeats_to(replicas) as heartbeats:
        return await Readiness(replicas, heartbeats).check()


@pytest.mark.parametrize("failing", [hanging, gone, cancelled_by_serve])
async def test_one_healthy_replica_is_enough(failing: Answer) -> None:
    replicas = Replicas(one=failing, other=failing, third=healthy)
    assert await check(replicas) == TargetLimits(VOCAB, CONTEXT, (), follows_grammars=False)
    assert replicas.called == ["one", "other", "third"]


@pytest.mark.parametrize("failing", [hanging, gone, cancelled_by_serve])
async def test_503_when_no_replica_is_healthy(failing: Answer) -> None:
    with pytest.raises(ApiError) as refused:
        await check(Replicas(one=failing, other=failing))
    assert refused.value.status == 503


@pytest.mark.parametrize("failing", [hanging, gone, cancelled_by_serve])
async def test_a_replica_that_takes_no_heartbeat_is_lost(failing: Answer) -> None:
    lost = asyncio.Event()
    async with heartbeats_to(Replicas(one=failing), lost.set) as heartbeats:
        heartbeats.probe("one")
        await asyncio.wait_for(lost.wait(), 5)


async def test_what_is_said_of_a_replica_that_was_there() -> None:
    replicas = Replicas(one=gone)
    async with heartbeats_to(replicas) as heartbeats:
        readiness = Readiness(replicas, heartbeats)
        with pytest.raises(ApiError, match="starting"):
            await readiness.check()
        replicas.answers["one"] = healthy
        await readiness.check()
        replicas.answers["one"] = gone
        with pytest.raises(ApiError, match="for 0 s: the last one is lost"):
            await readiness.check()


def test_a_clock_that_is_set_back_is_noticed_until_it_is_where_it_was() -> None:
    watch = ClockWatch()
    reads = [(1000.0, 0.0), (1000.9, 1.0), (1010.0, 10.0), (911.0, 11.0), (912.5, 12.0)]
    assert [watch.read(*one) for one in reads] == [0, 0, 0, 100, 99]
    assert watch.read(962.5, 62.0) == 49, "and again, less, as time goes by"
    assert watch.read(952.5, 62.0) == 59, "it was set back again"
    assert watch.read(1011.5, 62.0) == 0, "it was set right"
    assert watch.read(2000.0, 63.0) == 0, "forward"
    assert watch.read(1990.0, 63.0) == 10


async def test_checks_at_once_are_one_that_outlives_its_first_caller() -> None:
    replicas = Replicas(one=slow)
    async with heartbeats_to(replicas) as heartbeats:
        readiness = Readiness(replicas, heartbeats)
        alone = asyncio.create_task(readiness.check())
        others = [asyncio.create_task(readiness.check()) for _ in range(50)]
        await asyncio.sleep(0.01)
        alone.cancel()
        await asyncio.gather(*others)
        of_one_check = len(replicas.called)
        assert of_one_check <= 3
        await readiness.check()
        assert len(replicas.called) > of_one_check


async def test_a_stream_whose_replica_is_lost_hurries_no_heartbeats_to_others() -> None:
    replicas = Replicas(one=healthy)
    async with heartbeats_to(replicas) as heartbeats:
        for name, replica in (("lost", None), ("served", "one")):
            request = cast("StreamRequest", {"name": name, "routed_to": replica})
            limits = make_config().limits
            stream = FailoverStream(request, replicas, (), limits, lambda _replica: None)
            heartbeats.add(stream)
            heartbeats.record_written(stream, 1000)
        await asyncio.sleep(0.2)
        assert 1 <= replicas.heartbeats <= 2


async def test_health_says_that_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(one=healthy)
    async with heartbeats_to(replicas) as heartbeats:
        readiness = Readiness(replicas, heartbeats)
        await readiness.check()
        assert readiness.body == {"status": "ok", "drafters_down": 0}
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 300)
        assert "set back: for 300 s" in readiness.body["warning"]


async def test_a_hanging_replica_is_not_called_again_until_it_answers_a_heartbeat() -> None:
    waking = asyncio.Event()
    replicas = Replicas(one=waking.wait, other=healthy)
    async with heartbeats_to(replicas) as heartbeats:
        readiness_check = Readiness(replicas, heartbeats)
        await readiness_check.check()
        while "one" not in heartbeats.silent:
            await asyncio.sleep(0.01)
        await readiness_check.check()
        assert replicas.called == ["one", "other", "other"]
        waking.set()
        while heartbeats.silent:
            await asyncio.sleep(0.01)
        await readiness_check.check()
        assert replicas.called[3:] == ["one"]

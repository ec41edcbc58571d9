"""Readiness with replicas that hang, are slow or are lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ray.exceptions import RayActorError

from deployments.ingress import replicas as replicas_module
from deployments.ingress.errors import ApiError
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.replicas import Readiness
from deployments.messages import Heartbeat, Routed
from engine.request import TargetLimits
from tests.deployments.local import Method, make_config

LIMITS = TargetLimits(2048, 512, ())
Answer = Callable[[], Awaitable[object]]
"""What a replica does before it answers."""


class Replicas:
    """Behind a router that takes the first one that is not avoided."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.called: list[str] = []

    @property
    def describe(self) -> Method:
        return Method(lambda call_args: asyncio.create_task(self._describe(call_args)))

    @property
    def heartbeat(self) -> Method:
        return Method(self._heartbeat)

    async def _describe(self, call_args: Routed) -> dict[str, Any]:
        responsive = [name for name in self.answers if name not in call_args["avoid"]]
        name = (responsive or list(self.answers))[0]
        call_args["routed_to"] = name
        self.called.append(name)
        await self.answers[name]()
        return {
            "vocab_size": LIMITS.vocab_size,
            "max_context": LIMITS.max_context,
            "stop_token_ids": list(LIMITS.stop_token_ids),
            "follows_grammars": LIMITS.follows_grammars,
            "down": [],
        }

    async def _heartbeat(self, heartbeat: Heartbeat) -> None:
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
async def heartbeats_to(replicas: Replicas) -> AsyncIterator[HeartbeatSender]:
    limits = make_config(limits={"silent_replica_s": 0.1}).limits
    heartbeats = HeartbeatSender("ingress", replicas, limits, lambda: None)
    try:
        yield heartbeats
    finally:
        heartbeats.close()


def check(replicas: Replicas) -> TargetLimits:
    async def inside() -> TargetLimits:
        async with heartbeats_to(replicas) as heartbeats:
            return await Readiness(replicas, heartbeats).check()

    return asyncio.run(inside())


@pytest.mark.parametrize("failing", [hanging, gone, cancelled_by_serve])
def test_one_healthy_replica_is_enough(failing: Answer) -> None:
    replicas = Replicas(one=failing, other=failing, third=healthy)
    assert check(replicas) == LIMITS
    assert replicas.called == ["one", "other", "third"]


@pytest.mark.parametrize("failing", [hanging, gone, cancelled_by_serve])
def test_503_when_no_replica_is_healthy(failing: Answer) -> None:
    with pytest.raises(ApiError) as refused:
        check(Replicas(one=failing, other=failing))
    assert refused.value.status == 503


def test_a_hanging_replica_is_not_called_again_until_it_answers_a_heartbeat() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 10))

"""Whether anybody can serve, asked of replicas that hang, are slow or are gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ray.exceptions import RayActorError

from deployments.ingress import readiness
from deployments.ingress.errors import ApiError
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.readiness import Readiness
from deployments.messages import Heartbeat, Routed
from engine.request import TargetLimits
from tests.deployments.local import Method, make_config

LIMITS = TargetLimits(2048, 512, ())
Answer = Callable[[], Awaitable[object]]
"""What a replica does before it answers."""


class Replicas:
    """Behind a router that takes the first one that is not to be avoided."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[str] = []

    @property
    def describe(self) -> Method:
        return Method(lambda asked: asyncio.create_task(self._describe(asked)))

    @property
    def heartbeat(self) -> Method:
        return Method(self._sign_of_life)

    async def _describe(self, asked: Routed) -> dict[str, Any]:
        speaking = [name for name in self.answers if name not in asked["avoid"]]
        name = (speaking or list(self.answers))[0]
        asked["routed_to"] = name
        self.asked.append(name)
        await self.answers[name]()
        return {"vocab_size": LIMITS.vocab_size, "max_context": LIMITS.max_context}

    async def _sign_of_life(self, sign: Heartbeat) -> None:
        await self.answers[sign["replica"]]()


async def well() -> None:
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
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_NEXT_S", 0.02)


@asynccontextmanager
async def signs_to(replicas: Replicas) -> AsyncIterator[HeartbeatSender]:
    limits = make_config(limits={"silent_replica_s": 0.1}).limits
    signs = HeartbeatSender("ingress", replicas, limits)
    try:
        yield signs
    finally:
        signs.close()


def ask(replicas: Replicas) -> TargetLimits:
    async def asking() -> TargetLimits:
        async with signs_to(replicas) as signs:
            return await Readiness(replicas, signs).ask()

    return asyncio.run(asking())


@pytest.mark.parametrize("sick", [hanging, gone, cancelled_by_serve])
def test_one_replica_that_is_well_is_enough(sick: Answer) -> None:
    replicas = Replicas(one=sick, other=sick, third=well)
    assert ask(replicas) == LIMITS
    assert replicas.asked == ["one", "other", "third"]


def test_one_that_is_slow_is_asked_again_and_its_first_answer_counts() -> None:
    replicas = Replicas(only=slow)
    assert ask(replicas) == LIMITS
    assert len(replicas.asked) > 1


@pytest.mark.parametrize("sick", [hanging, gone, cancelled_by_serve])
def test_503_when_none_is_well(sick: Answer) -> None:
    with pytest.raises(ApiError) as refused:
        ask(Replicas(one=sick, other=sick))
    assert refused.value.status == 503


def test_one_that_hangs_is_not_asked_again_until_it_gives_a_sign_of_life() -> None:
    async def test() -> None:
        waking = asyncio.Event()
        replicas = Replicas(one=waking.wait, other=well)
        async with signs_to(replicas) as signs:
            ready = Readiness(replicas, signs)
            await ready.ask()
            while "one" not in signs.silent:
                await asyncio.sleep(0.01)
            await ready.ask()
            assert replicas.asked == ["one", "other", "other"]
            waking.set()
            while signs.silent:
                await asyncio.sleep(0.01)
            await ready.ask()
            assert replicas.asked[3:] == ["one"]

    asyncio.run(asyncio.wait_for(test(), 10))

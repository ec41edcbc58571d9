"""Who competes in benchmarks/serving/peers.py, and Spindle on vLLM as one of them.

From token ids to token ids, on the same checkpoint, with as large a KV memory and as many threads.
What serves is imported by the process that serves with it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from actors.coordinator.events import Event
    from actors.coordinator.loop import Coordinator
    from cluster.config import AppConfig

Dtype = Literal["bfloat16", "float32"]
Number = TypeVar("Number", int, float)

PARAMS = 90_000_000
THREADS = 2
KV_TOKENS = 8192
CONFIG = Path("cluster/vllm.yaml")
_RAY_CPUS = 16
"""What Ray may hand out, however many there are."""
_SETTLED_S = 0.5
"""Until hosts have heard what to forget: a call that is under way when everybody is stopped looks
like a host that hangs."""


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int
    stop: tuple[int, ...] = ()
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """The same requests by one contender."""

    lengths: tuple[int, ...]
    took_s: tuple[float, ...]
    """Of each request, from when it was sent to its last token."""
    seconds: float
    forwards: int
    """Of the target."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class Side(Protocol):
    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        """Closed loop: as many requests as clients are under way, as long as there are any."""
        ...


class Spindle:
    """The application of cluster/vllm.yaml without HTTP: its coordinator and policies in this
    process, its models in actors, or here as well."""

    def __init__(self, objective: str, dtype: Dtype, in_process: bool = False) -> None:
        """`objective`: of the planner."""
        self._events: list[Event] = []
        self._names = map(str, count())
        # On a thread of its own, for actors must be heard all the time.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        starting = self._start(_config(objective, dtype, in_process), in_process)
        self._coordinator = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    async def _start(self, config: "AppConfig", in_process: bool) -> "Coordinator":
        import ray

        from actors.hosts.fleet import raise_fleet
        from actors.hosts.spawn import Group
        from cluster.placement import plan
        from cluster.zoo.paths import cache_dir
        from deployments.replica.host_specs import drafter_specs, limits_of, target_spec
        from deployments.replica.service import Service

        if not in_process:
            ray.init("local", num_cpus=_RAY_CPUS, include_dashboard=False, log_to_driver=False)
        placement = plan(config)
        fleet = await raise_fleet(
            target_spec(config, placement),
            drafter_specs(config, placement),
            cache_dir() / "profiles",
            None if in_process else Group("peers"),
            limits_of(config),
        )
        service = Service(config, fleet)
        await service.warm_up()
        service.report_to(self._events.append)
        await asyncio.sleep(_SETTLED_S)
        return service.coordinator

    def serve(self, requests: Sequence[Asked], clients: int) -> Served:
        serving = self._serve(requests, clients)
        return asyncio.run_coroutine_threadsafe(serving, self._loop).result()

    async def _serve(self, requests: Sequence[Asked], clients: int) -> Served:
        from actors.coordinator.events import LaneDown, Verified, VerifierDown
        from engine.sampling.params import SamplingParams

        self._events.clear()

        async def ask(asked: Asked) -> int:
            params = SamplingParams(
                temperature=asked.temperature,
                max_tokens=asked.max_tokens,
                stop_token_ids=asked.stop,
                ignore_eos=True,
            )
            stream = self._coordinator.submit(next(self._names), asked.prompt, params)
            return sum([len(commit.token_ids) async for commit in stream])

        lengths, took_s, seconds = await closed_loop(requests, clients, ask)
        await asyncio.sleep(_SETTLED_S)
        if lost := [one for one in self._events if isinstance(one, LaneDown | VerifierDown)]:
            raise RuntimeError(f"it lost a host: {lost[0].error}")
        forwards = sum(isinstance(event, Verified) for event in self._events)
        return Served(lengths, took_s, seconds, forwards)


def _config(objective: str, dtype: Dtype, in_process: bool) -> "AppConfig":
    from cluster.check import read
    from cluster.config import AppConfig

    (application,) = read(CONFIG)
    said: dict[str, Any] = {**application.args}
    said["target"] = {**said["target"], "dtype": dtype, "kv_tokens": KV_TOKENS}
    said["policies"] = {"speculation": {"name": "planner", "options": {"objective": objective}}}
    if in_process:
        said["threads"] = said["target"].pop("threads")
        for model in (said["target"], *said["drafters"]):
            if "model" in model:
                model["placement"] = "inline"
    return AppConfig.model_validate(said)


async def closed_loop(
    requests: Sequence[Asked], clients: int, ask: Callable[[Asked], Awaitable[int]]
) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """How many tokens each was given and how long it took, and all of them together."""
    waiting = deque(enumerate(requests))
    lengths: dict[int, int] = {}
    took_s: dict[int, float] = {}

    async def client() -> None:
        while waiting:
            place, asked = waiting.popleft()
            sent_s = time.perf_counter()
            lengths[place] = await ask(asked)
            took_s[place] = time.perf_counter() - sent_s

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return in_order(lengths), in_order(took_s), time.perf_counter() - begun


def in_order(by_place: Mapping[int, Number]) -> tuple[Number, ...]:
    return tuple(by_place[place] for place in range(len(by_place)))

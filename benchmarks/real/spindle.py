"""What benchmarks compare with vLLM: the protocol of a contender, and Spindle.

All contenders of a run serve token ids from the same checkpoint, with equal KV memory and threads.
Each is imported in its own process only.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarks.serving.closed_loop import closed_loop

if TYPE_CHECKING:
    from actors.coordinator.events import Event
    from actors.coordinator.loop import Coordinator
    from cluster.config import AppConfig

Dtype = Literal["bfloat16", "float32"]

THREADS = 2
_RAY_CPUS = 16
"""Enough for all actors; Ray does not compare it with the machine's."""
_SETTLED_S = 0.5
"""Until the last calls to hosts have returned: a call in flight while processes are stopped looks
like a host that hangs."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int
    stop: tuple[int, ...] = ()
    domain: str = ""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One batch of requests, served by one contender."""

    lengths: tuple[int, ...]
    """Output tokens of each request."""
    latencies_s: tuple[float, ...]
    """Time of each request, from when it is sent to its last token."""
    seconds: float
    """Time of all requests together."""
    forwards: int
    """Forwards of the target."""
    rounds: tuple[tuple[int, ...], ...] = ()
    """How many tokens of each request came at a time, one forward's each; empty from a contender
    that does not say."""
    drafted: int = 0
    """Draft tokens that were verified."""
    draft_s: float = 0.0
    """Within calls of drafters, whatever else computes meanwhile."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class Server(Protocol):
    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        """In a closed loop of so many clients."""
        ...


class Spindle:
    """An application without HTTP: coordinator and policies in this process, models here as well or
    in actors, as the config places them."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        """`args`: the application's, as in a config. Raises ValidationError."""
        from cluster.config import AppConfig

        self._events: list[Event] = []
        self._names = map(str, count())
        # On a thread of its own: heartbeats of actors arrive between turns as well.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        starting = self._start(AppConfig.model_validate(args))
        self._coordinator = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    async def _start(self, config: "AppConfig") -> "Coordinator":
        import ray

        from actors.hosts.fleet import start_fleet
        from actors.hosts.spawn import Group
        from cluster.cache import cache_dir
        from deployments.replica.hosts import MEASURE_S, limits_of
        from deployments.replica.service import Service

        placements = [config.target.placement, *(drafter.placement for drafter in config.drafters)]
        in_process = "actor" not in placements
        if not in_process:
            ray.init("local", num_cpus=_RAY_CPUS, include_dashboard=False, log_to_driver=False)
        fleet = await start_fleet(
            config.target,
            config.drafters,
            cache_dir() / "profiles",
            None if in_process else Group("contest"),
            limits_of(config),
            measure_s=MEASURE_S,
        )
        service = Service(config, fleet)
        await service.warm_up()
        service.add_observer(self._events.append)
        await asyncio.sleep(_SETTLED_S)
        return service.coordinator

    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        serving = self._serve(requests, clients)
        return asyncio.run_coroutine_threadsafe(serving, self._loop).result()

    async def _serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        from actors.coordinator.events import Drafted, LaneDown, Verified, VerifierDown
        from engine.sampling.params import SamplingParams

        self._events.clear()

        async def send(request: PeerRequest) -> list[int]:
            params = SamplingParams(
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                stop_token_ids=request.stop,
                ignore_eos=True,
            )
            stream = self._coordinator.submit(next(self._names), request.prompt, params)
            return [len(commit.token_ids) async for commit in stream]

        timed = await serve_timed(requests, clients, send)
        await asyncio.sleep(_SETTLED_S)
        if lost := [e for e in self._events if isinstance(e, LaneDown | VerifierDown)]:
            raise RuntimeError(f"a host was lost: {lost[0].error}")
        forwards = [event for event in self._events if isinstance(event, Verified)]
        drafted = sum(outcome.drafted for forward in forwards for outcome in forward.outcomes)
        draft_s = sum(event.seconds for event in self._events if isinstance(event, Drafted))
        return replace(timed, forwards=len(forwards), drafted=drafted, draft_s=draft_s)


async def serve_timed(
    requests: Sequence[PeerRequest],
    clients: int,
    send: Callable[[PeerRequest], Awaitable[Sequence[int]]],
) -> TurnResult:
    """`send` returns how many of a request's output tokens came at a time. What the server did
    meanwhile is left out."""
    clock = asyncio.get_running_loop().time

    async def timed(_number: int, request: PeerRequest) -> tuple[tuple[int, ...], float]:
        sent_s = clock()
        return tuple(await send(request)), clock() - sent_s

    served, seconds = await closed_loop(requests, clients, timed)
    rounds = tuple(own for own, _ in served)
    latencies_s = tuple(latency_s for _, latency_s in served)
    return TurnResult(tuple(map(sum, rounds)), latencies_s, seconds, 0, rounds)

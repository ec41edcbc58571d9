"""What benchmarks/serving/peers.py compares: the protocol of a contender, and Spindle on vLLM.

All contenders serve token ids from the same checkpoint, with equal KV memory and threads. Each is
imported in its own process only.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarks.serving.closed_loop import closed_loop

if TYPE_CHECKING:
    from actors.coordinator.events import Event
    from actors.coordinator.loop import Coordinator
    from cluster.config import AppConfig

Dtype = Literal["bfloat16", "float32"]

PARAMS = 90_000_000
THREADS = 2
KV_TOKENS = 8192
CONFIG = Path("cluster/vllm.yaml")
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
    """Of each request, from when it is sent to its last token."""
    seconds: float
    """Of all requests together."""
    forwards: int
    """Of the target."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class Server(Protocol):
    def serve(self, requests: Sequence[PeerRequest], clients: int) -> TurnResult:
        """In a closed loop of so many clients."""
        ...


class Spindle:
    """The application of cluster/vllm.yaml without HTTP: coordinator and policies in this process,
    models in actors or, with `in_process`, here as well."""

    def __init__(self, dtype: Dtype, in_process: bool = False) -> None:
        self._events: list[Event] = []
        self._names = map(str, count())
        # On a thread of its own: heartbeats of actors arrive between turns as well.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        starting = self._start(_config(dtype, in_process), in_process)
        self._coordinator = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    async def _start(self, config: "AppConfig", in_process: bool) -> "Coordinator":
        import ray

        from actors.hosts.fleet import start_fleet
        from actors.hosts.spawn import Group
        from cluster.placement import plan
        from cluster.zoo.paths import cache_dir
        from deployments.replica.host_specs import drafter_specs, limits_of, target_spec
        from deployments.replica.service import Service

        if not in_process:
            ray.init("local", num_cpus=_RAY_CPUS, include_dashboard=False, log_to_driver=False)
        placement = plan(config)
        fleet = await start_fleet(
            target_spec(config, placement),
            drafter_specs(config, placement),
            cache_dir() / "profiles",
            None if in_process else Group("peers"),
            limits_of(config),
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
        from actors.coordinator.events import LaneDown, Verified, VerifierDown
        from engine.sampling.params import SamplingParams

        self._events.clear()

        async def send(request: PeerRequest) -> int:
            params = SamplingParams(
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                stop_token_ids=request.stop,
                ignore_eos=True,
            )
            stream = self._coordinator.submit(next(self._names), request.prompt, params)
            return sum([len(commit.token_ids) async for commit in stream])

        timed = await serve_timed(requests, clients, send)
        await asyncio.sleep(_SETTLED_S)
        if lost := [e for e in self._events if isinstance(e, LaneDown | VerifierDown)]:
            raise RuntimeError(f"a host was lost: {lost[0].error}")
        forwards = sum(isinstance(event, Verified) for event in self._events)
        return TurnResult(*timed, forwards)


def _config(dtype: Dtype, in_process: bool) -> "AppConfig":
    from cluster.check import read
    from cluster.config import AppConfig

    (application,) = read(CONFIG)
    args: dict[str, Any] = {**application.args}
    args["target"] = {**args["target"], "dtype": dtype, "kv_tokens": KV_TOKENS}
    if in_process:
        args["threads"] = args["target"].pop("threads")
        for model in (args["target"], *args["drafters"]):
            if "model" in model:
                model["placement"] = "inline"
    return AppConfig.model_validate(args)


async def serve_timed(
    requests: Sequence[PeerRequest],
    clients: int,
    send: Callable[[PeerRequest], Awaitable[int]],
) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """`send` returns a request's output tokens. Returns those, the requests' latencies, and the
    seconds of all together."""
    clock = asyncio.get_running_loop().time

    async def timed(_number: int, request: PeerRequest) -> tuple[int, float]:
        sent_s = clock()
        return await send(request), clock() - sent_s

    served, seconds = await closed_loop(requests, clients, timed)
    return tuple(n for n, _ in served), tuple(latency_s for _, latency_s in served), seconds

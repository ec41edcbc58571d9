"""Ray actors for the workers of one replica. The only module in actors/ that imports ray.

Ray makes, places and ends them; workers are called over a line of their own
(actors/hosts/rpc_channel.py). An actor is lost when its line ends or Ray says so, and never
restarted by Ray: a new one is made in its place (actors/hosts/supervision.py). Actors end with the
process that made them.
"""

import asyncio
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.hosts.protocol import HostLost
from actors.hosts.rpc_channel import Address, Listener, RpcChannel, WorkerFailed, connect
from actors.hosts.specs import DrafterSpec, TargetSpec
from actors.hosts.workers import DrafterWorker, FollowerWorker, VerifierWorker
from engine.errors import SpindleError
from engine.parallel.ranks import Place
from engine.verifiers.vllm.environment import process_environment

_ANYWHERE = -1
"""In Ray's words: any bundle of the placement group."""


class Host:
    """What runs in an actor: a worker, at the end of a line."""

    def __init__(self, threads: int, worker: type, *arguments: object) -> None:
        torch.set_num_threads(threads)
        self._worker = worker(*arguments)
        self._listener = Listener(ray.util.get_node_ip_address())

    def address(self) -> Address:
        return self._listener.address

    def serve(self) -> None:
        """On the actor's main thread, until its maker hangs up or kills it."""
        self._listener.serve(self._worker)

    def meeting_point(self) -> str:
        """Where ranks can meet on this node. A port that is taken until then fails the start."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


_HOST = ray.remote(Host)
"""Once: Ray sends a class to the cluster when its first actor is made."""


class Actors:
    """A Life: one actor, or all ranks of a target, of which the first answers. All live or none."""

    def __init__(self, handles: Sequence[ActorHandle]) -> None:
        self._handles = handles
        self._lines: list[RpcChannel] = []
        self._watching: list[asyncio.Task[None]] = []

    async def call(self, method: str, *arguments: object) -> Any:
        return await self._lines[0].call(method, *arguments)

    async def load(self, timeout_s: float = 0.0) -> None:
        """`timeout_s`: how long ranks wait for each other."""
        try:
            if len(self._handles) == 1:
                await self._connect()
                await self.call("load")
            else:
                await self._load_ranks(timeout_s)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        for watching in self._watching:
            watching.cancel()
        self._end(HostLost("it was killed"))

    async def _connect(self) -> None:
        addresses = [_answer(handle.address.remote()) for handle in self._handles]
        for handle, address in zip(self._handles, await asyncio.gather(*addresses), strict=True):
            serving = handle.serve.remote()
            line = await connect(address)
            self._lines.append(line)
            self._watching.append(asyncio.create_task(_watch(serving, line)))

    async def _load_ranks(self, timeout_s: float) -> None:
        meeting_point = await _answer(self._handles[0].meeting_point.remote())
        await self._connect()
        ranks = len(self._handles)
        places = [Place(rank, ranks, meeting_point, timeout_s) for rank in range(ranks)]
        following = [
            line.call("follow", place)
            for line, place in zip(self._lines[1:], places[1:], strict=True)
        ]
        self._watching.append(asyncio.create_task(self._until_one_ends(following)))
        await self.call("load", places[0])

    async def _until_one_ends(self, following: Sequence[Awaitable[Any]]) -> None:
        """The leader would find out only in its next forward."""
        try:
            await asyncio.gather(*following)
        except SpindleError as error:
            self._end(error)

    def _end(self, why: SpindleError) -> None:
        for line in self._lines:
            line.close(why)
        for handle in self._handles:
            ray.kill(handle)


@dataclass(frozen=True, slots=True)
class Group:
    """The actors of one replica: how they are called, and where they are."""

    name: str
    placement_group: PlacementGroup | None = None
    """None: that of the process that makes them, where it has one."""

    async def begin_drafter(
        self, spec: DrafterSpec, number: int, target_vocab_size: int, life: int
    ) -> Actors:
        """Of the spec's instances, the one of this number."""
        lane = spec.lanes[number]
        bundle = spec.bundles[number] if spec.bundles else _ANYWHERE
        make = self._options(f"{lane}:{life}", spec, spec.gpus, bundle)
        actors = Actors([make.remote(spec.threads, DrafterWorker, spec, lane, target_vocab_size)])
        await actors.load()
        return actors

    async def begin_verifier(self, spec: TargetSpec, timeout_s: float, life: int) -> Actors:
        """`timeout_s`: how long ranks wait for each other."""
        bundles = spec.bundles or (_ANYWHERE,) * spec.actors
        gpus = spec.gpus * spec.tensor_parallel / spec.actors
        handles = []
        for rank, bundle in enumerate(bundles):
            label = f"verifier/rank{rank}:{life}" if rank else f"verifier:{life}"
            make = self._options(label, spec, gpus, bundle)
            worker = FollowerWorker if rank else VerifierWorker
            handles.append(make.remote(spec.threads, worker, spec))
        actors = Actors(handles)
        await actors.load(timeout_s)
        return actors

    def _options(
        self, label: str, spec: DrafterSpec | TargetSpec, gpus: float, bundle: int
    ) -> ActorClass:
        placed = {}
        if self.placement_group is not None:
            placed["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self.placement_group, bundle
            )
        return _HOST.options(
            name=f"spindle:{self.name}:{label}",
            num_cpus=spec.cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": _environment(spec)},
            **placed,
        )


def _environment(spec: DrafterSpec | TargetSpec) -> dict[str, str]:
    """Threads that spin while they wait cost the other processes of the node more than they save
    (up to ten times the work, measured)."""
    environment = {"OMP_NUM_THREADS": str(spec.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if isinstance(spec, TargetSpec) and spec.backend == "vllm":
        environment |= process_environment()
    return environment


async def _watch(serving: Awaitable[None], line: RpcChannel) -> None:
    """Ray hears of a node's death, which ends no connection."""
    try:
        await _answer(serving)
        line.close(HostLost("it hung up"))
    except SpindleError as error:
        line.close(error)


async def _answer(reference: Awaitable[Any]) -> Any:
    """Ray's errors as ours."""
    try:
        return await reference
    except TaskCancelledError as error:
        # Serve cancels what a request has called when the request goes: nobody is lost.
        raise asyncio.CancelledError from error
    except RayTaskError as error:
        raise WorkerFailed(str(error)) from error
    except RayError as error:
        # The first line tells what happened, the others all that Ray knows of the actor.
        raise HostLost(str(error).splitlines()[0]) from error

"""Ray actors for the workers of one replica. The only module in actors/ that imports ray.

An actor is lost when Ray says so, and never restarted by Ray: a new one is made in its place
(actors/supervision.py). What a worker itself raises comes out of the call as it is. Actors end
with the process that made them.
"""

import asyncio
import pickle
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

from actors.hosts import HostLost
from actors.specs import DrafterSpec, TargetSpec
from actors.workers import DrafterWorker, FollowerWorker, VerifierWorker
from engine.errors import SpindleError
from engine.ranks import Place, RankLost
from engine.verifiers.vllm_environment import process_environment

_ANYWHERE = -1
"""In Ray's words: any bundle of the placement group."""


class Host:
    """What runs in an actor: a worker, and its calls and answers as one string of bytes each.

    A batch is many small objects, which Ray's own pickler visits one by one.
    """

    def __init__(self, threads: int, worker: type, *arguments: object) -> None:
        torch.set_num_threads(threads)
        self._worker = worker(*arguments)

    def call(self, method: str, arguments: bytes) -> bytes:
        return _packed(getattr(self._worker, method)(*pickle.loads(arguments)))

    def meeting_point(self) -> str:
        """Where ranks can meet on this node. A port that is taken until then fails the start."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


_HOST = ray.remote(Host)
"""Once: Ray sends a class to the cluster when its first actor is made."""


class WorkerFailed(SpindleError):
    """A worker raised what none of ours raises on purpose: a defect, and no death."""


class Actors:
    """A Life: one actor, or all ranks of a target, of which the first answers. All live or none."""

    def __init__(self, handles: Sequence[ActorHandle]) -> None:
        self._handles = handles
        self._following: asyncio.Task[None] | None = None
        self._end: SpindleError | None = None

    async def call(self, method: str, *arguments: object) -> Any:
        try:
            return await _call(self._handles[0], method, *arguments)
        except HostLost as error:
            raise self._end or error from error

    async def load(self, timeout_s: float = 0.0) -> None:
        """`timeout_s`: how long ranks wait for each other."""
        try:
            if len(self._handles) == 1:
                await self.call("load")
            else:
                await self._load_ranks(timeout_s)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._kill()

    async def _load_ranks(self, timeout_s: float) -> None:
        leader, *others = self._handles
        ranks = len(self._handles)
        meeting_point = await _answer(leader.meeting_point.remote())
        places = [Place(rank, ranks, meeting_point, timeout_s) for rank in range(ranks)]
        following = [
            asyncio.ensure_future(_call(handle, "follow", place))
            for handle, place in zip(others, places[1:], strict=True)
        ]
        self._following = asyncio.create_task(self._until_one_ends(following))
        await self.call("load", places[0])

    async def _until_one_ends(self, following: Sequence[asyncio.Future[Any]]) -> None:
        """The leader would find out only in its next forward."""
        try:
            await asyncio.gather(*following)
        except SpindleError as error:
            self._end = error
            self._kill()

    def _kill(self) -> None:
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


async def _call(handle: ActorHandle, method: str, *arguments: object) -> Any:
    return pickle.loads(await _answer(handle.call.remote(method, _packed(arguments))))


async def _answer(reference: Awaitable[Any]) -> Any:
    """Ray's errors as ours."""
    try:
        return await reference
    except TaskCancelledError as error:
        # Serve cancels what a request has called when the request goes: nobody is lost.
        raise asyncio.CancelledError from error
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RankLost):
            raise HostLost(str(cause)) from error
        if isinstance(cause, SpindleError):
            raise cause from error
        raise WorkerFailed(str(error)) from error
    except RayError as error:
        # The first line tells what happened, the others all that Ray knows of the actor.
        raise HostLost(str(error).splitlines()[0]) from error


def _packed(content: object) -> bytes:
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)

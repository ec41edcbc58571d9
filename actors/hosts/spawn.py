"""Ray actors for the workers of one replica. The only module in actors/ that imports ray.

Ray creates, places and ends the actors; workers are called over connections of ours
(actors/hosts/rpc_channel.py). An actor is lost when its connection ends or Ray reports its death.
Ray never restarts it: a new one is created in its place (actors/hosts/supervision.py). Actors end
with the process that created them.
"""

import asyncio
import re
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.hosts.protocol import HostLost
from actors.hosts.rpc_channel import Address, Listener, RpcChannel, WorkerFailed, connect
from actors.hosts.specs import DrafterSpec, TargetSpec
from actors.hosts.work_log import LoggedWorker, log_to_file
from engine.cpu.environment import openmp_environment
from engine.errors import SpindleError
from engine.verifiers.vllm.environment import process_environment

_ANYWHERE = -1
"""Ray's index for any bundle of the placement group."""
DRAFTER_WORKER = "actors.hosts.workers:DrafterWorker"
VERIFIER_WORKER = "actors.hosts.workers:VerifierWorker"
"""Classes by name: only the actors import them, and model code with them, which takes seconds."""


class Host:
    """The class of all actors: a worker that answers the calls of one connection."""

    def __init__(self, name: str, threads: int, worker: str, *arguments: object) -> None:
        from engine.cpu.threads import set_threads

        set_threads(threads)
        log_to_file(_log_file(name))
        self._worker = LoggedWorker(resolve_name(worker)(*arguments))
        self._listener = Listener(ray.util.get_node_ip_address())

    def address(self) -> Address:
        return self._listener.address

    def serve(self) -> None:
        """Runs on the actor's main thread until the coordinator disconnects or kills the actor."""
        self._listener.serve(self._worker)


def _log_file(name: str) -> Path:
    """Beside those of Serve's replicas, in the session's folder."""
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    return logs / "serve" / (re.sub(r"[^\w-]+", "_", name) + ".log")


_HOST = ray.remote(Host)
"""Wrapped only once: Ray sends a class to the cluster when its first actor is created."""


class Actor:
    """An Incarnation in a process of its own."""

    def __init__(self, handle: ActorHandle) -> None:
        self._handle = handle
        self._channel: RpcChannel | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def call(self, method: str, *arguments: object) -> Any:
        assert self._channel is not None, "not started"
        return await self._channel.call(method, *arguments)

    async def start(self) -> None:
        """Returns when the process has imported everything and takes calls."""
        try:
            address: Address = await _result(self._handle.address.remote())
            serving = self._handle.serve.remote()
            self._channel = await connect(address)
            self._watcher = asyncio.create_task(_watch(serving, self._channel))
        except BaseException:
            self.kill()
            raise

    async def load(self) -> None:
        try:
            await self.call("load")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._channel is not None:
            self._channel.close(HostLost("it was killed"))
        ray.kill(self._handle)


@dataclass(frozen=True, slots=True)
class Group:
    """Creates the actors of one replica, by its name and placement group."""

    name: str
    placement_group: PlacementGroup | None = None
    """None: that of the process that creates them, if it has one."""

    async def launch_drafter(
        self, spec: DrafterSpec, number: int, target_vocab_size: int, life: int
    ) -> Actor:
        """`number`: of the instance among the spec's. `life`: of the incarnation."""
        lane = spec.lanes[number]
        bundle = spec.bundles[number] if spec.bundles else _ANYWHERE
        name = self._name_of(f"{lane}:{life}")
        actor_class = self._options(name, spec, spec.gpus, bundle)
        actor = Actor(
            actor_class.remote(name, spec.threads, DRAFTER_WORKER, spec, lane, target_vocab_size)
        )
        await actor.start()
        await actor.load()
        return actor

    async def start_verifier(self, spec: TargetSpec, life: int) -> Actor:
        """The process, which loads nothing yet. `life`: how many were started before."""
        bundle = spec.bundles[0] if spec.bundles else _ANYWHERE
        name = self._name_of(f"verifier:{life}")
        actor_class = self._options(name, spec, spec.gpus * spec.tensor_parallel, bundle)
        actor = Actor(actor_class.remote(name, spec.threads, VERIFIER_WORKER, spec))
        await actor.start()
        return actor

    def _name_of(self, label: str) -> str:
        return f"spindle:{self.name}:{label}"

    def _options(
        self, name: str, spec: DrafterSpec | TargetSpec, gpus: float, bundle: int
    ) -> ActorClass:
        placed = {}
        if self.placement_group is not None:
            placed["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self.placement_group, bundle
            )
        return _HOST.options(
            name=name,
            # The placement group has reserved the CPUs. If actors requested them as well, a killed
            # process that hangs would keep them from its successor for five seconds.
            num_cpus=spec.cpus if self.placement_group is None else 0,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": _environment(spec)},
            **placed,
        )


class VerifierLauncher:
    """Starts the incarnations of a target. The process of the next one is started beforehand
    when the present one is suspected: after a loss the model has to be loaded, but nothing to be
    imported."""

    def __init__(self, group: Group, spec: TargetSpec) -> None:
        self._group = group
        self._spec = spec
        self._starts = 0
        """How often a process was started, including those that were not needed."""
        self._standby: asyncio.Task[Actor] | None = None

    async def launch(self, _number: int) -> Actor:
        standby, self._standby = self._standby, None
        actor = await (standby or self._start())
        await actor.load()
        return actor

    def prepare(self) -> None:
        # A GPU is free for the next process only when the present one has ended.
        if self._standby is None and not self._spec.gpus:
            self._standby = asyncio.create_task(self._start())

    def discard(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.cancel()
            standby.add_done_callback(_kill)

    def _start(self) -> Coroutine[Any, Any, Actor]:
        self._starts += 1
        return self._group.start_verifier(self._spec, self._starts - 1)


def _kill(standby: "asyncio.Task[Actor]") -> None:
    if not standby.cancelled() and standby.exception() is None:
        standby.result().kill()


def _environment(spec: DrafterSpec | TargetSpec) -> dict[str, str]:
    environment = openmp_environment(spec.threads)
    if isinstance(spec, TargetSpec) and spec.backend == "vllm":
        environment |= process_environment()
    return environment


async def _watch(serving: Awaitable[None], channel: RpcChannel) -> None:
    """Closes the connection when Ray reports the actor's end: the loss of a node ends no
    connection."""
    try:
        await _result(serving)
        channel.close(HostLost("it stopped serving"))
    except SpindleError as error:
        channel.close(error)


async def _result(reference: Awaitable[Any]) -> Any:
    """The result of one of Ray's own calls, with Ray's errors as ours."""
    try:
        return await reference
    except TaskCancelledError as error:
        # Serve cancels the calls of a request that leaves: no host is lost.
        raise asyncio.CancelledError from error
    except RayTaskError as error:
        raise WorkerFailed(str(error)) from error
    except RayError as error:
        # The first line names the cause, the others describe the actor.
        raise HostLost(str(error).splitlines()[0]) from error

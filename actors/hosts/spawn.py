"""Ray actors for the workers of one replica. The only module in actors/ that imports ray.

Ray creates, places and ends the actors; workers are called over connections of ours
(actors/hosts/rpc_channel.py). An actor is lost when its connection ends or Ray reports its death.
Ray never restarts it: a new one is created in its place (actors/hosts/supervision.py). Actors end
with the process that created them.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
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
from cluster.config import DrafterConfig, TargetConfig
from cluster.placement import Placement
from engine.cpu.environment import openmp_environment
from engine.errors import SpindleError
from engine.verifiers.vllm.environment import process_environment

_ANYWHERE = -1
"""Ray's index for any bundle of the placement group."""
DRAFTER_WORKER = "actors.hosts.workers:DrafterWorker"
VERIFIER_WORKER = "actors.hosts.workers:VerifierWorker"
"""Classes by name: only the actors import them, and model code with them, which takes seconds."""
_OURS = ("actors", "cluster", "engine", "policies", "spindle")
_FORMAT = "%(levelname)s %(asctime)s %(name)s:%(lineno)d - %(message)s"
_FILE_BYTES = 10 * 2**20
_OLD_FILES = 2


class Host:
    """The class of all actors: a worker that answers the calls of one connection."""

    def __init__(self, name: str, threads: int, worker: str, *arguments: object) -> None:
        from engine.cpu.threads import set_threads

        set_threads(threads)
        _log_to_file(_log_file(name))
        self._worker = resolve_name(worker)(*arguments)
        self._listener = Listener(ray.util.get_node_ip_address())

    def address(self) -> Address:
        return self._listener.address

    def serve(self) -> None:
        """Runs on the actor's main thread until the coordinator disconnects or kills the actor."""
        self._listener.serve(self._worker)


def _log_to_file(path: Path) -> None:
    """Ray shows what its workers print on the terminal that has started the application; so only
    warnings go there as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES)
    file.setFormatter(logging.Formatter(_FORMAT))
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers = [file, terminal]
        logger.propagate = False
        logger.setLevel(logging.INFO)


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
        """Returns when the worker has loaded its model and takes orders."""
        try:
            address: Address = await _result(self._handle.address.remote())
            serving = self._handle.serve.remote()
            self._channel = await connect(address)
            self._watcher = asyncio.create_task(_watch(serving, self._channel))
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
    placement: Placement | None = None
    """Which bundle of the placement group each actor gets; None: any."""

    async def launch_drafter(
        self, drafter: DrafterConfig, lane: str, target: TargetConfig, life: int
    ) -> Actor:
        """`life`: how many were launched for this lane before."""
        bundle = self.placement.lanes[lane] if self.placement else None
        name = f"spindle:{self.name}:{lane}:{life}"
        create = self._options(name, drafter, drafter.gpus, bundle).remote
        actor = Actor(create(name, drafter.threads, DRAFTER_WORKER, drafter, lane, target))
        await actor.start()
        return actor

    async def launch_verifier(
        self, target: TargetConfig, feature_layers: tuple[int, ...], life: int
    ) -> Actor:
        bundle = self.placement.target if self.placement else None
        name = f"spindle:{self.name}:verifier:{life}"
        create = self._options(name, target, target.gpus * target.tensor_parallel, bundle).remote
        actor = Actor(create(name, target.threads, VERIFIER_WORKER, target, feature_layers))
        await actor.start()
        return actor

    def _options(
        self, name: str, model: DrafterConfig | TargetConfig, gpus: float, bundle: int | None
    ) -> ActorClass:
        placed = {}
        if self.placement_group is not None:
            placed["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self.placement_group, _ANYWHERE if bundle is None else bundle
            )
        return _HOST.options(
            name=name,
            # The placement group has reserved the CPUs. If actors requested them as well, a killed
            # process that hangs would keep them from its successor for five seconds.
            num_cpus=model.cpus if self.placement_group is None else 0,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": _environment(model)},
            **placed,
        )


def _environment(model: DrafterConfig | TargetConfig) -> dict[str, str]:
    environment = openmp_environment(model.threads)
    if isinstance(model, TargetConfig) and model.backend == "vllm":
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

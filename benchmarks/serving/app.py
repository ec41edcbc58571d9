"""Starts and stops the application on a Ray cluster of its own, for benchmarks and long tests."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray._private import state  # the public API needs a dashboard: half a dozen processes
from ray.cluster_utils import Cluster
from ray.serve import Application

from benchmarks.processes import environment
from deployments.app import build

APP = "spindle"
_CLUSTER = Path(__file__).parents[2] / "cluster"


@dataclass(frozen=True, slots=True)
class Actor:
    """A living actor as Ray lists it."""

    name: str
    class_name: str
    pid: int
    node: str


@dataclass(frozen=True, slots=True)
class App:
    url: str
    cluster: Cluster

    def actors(self) -> list[Actor]:
        return [
            Actor(actor["Name"], actor["ActorClassName"], actor["Pid"], actor["Address"]["NodeID"])
            for actor in state.actors(actor_state_name="ALIVE").values()
        ]

    def replica_states(self) -> Mapping[str, int]:
        """The number of replicas in each of Serve's states."""
        states: Mapping[str, int] = (
            serve.status().applications[APP].deployments["Replica"].replica_states
        )
        return states


def small_args() -> dict[str, Any]:
    """The application's arguments in cluster/test.yaml."""
    (application,) = yaml.safe_load((_CLUSTER / "test.yaml").read_text())["applications"]
    args: dict[str, Any] = application["args"]
    return args


@contextmanager
def running(
    args: Mapping[str, Any],
    port: int,
    worker_nodes: int = 0,
    cpus: float = 8,
    build_app: Callable[[Mapping[str, Any]], Application] = build,
) -> Iterator[App]:
    """Serve with `worker_nodes` simulated nodes beside the head; with none, the head hosts all.

    With worker nodes the head has one CPU: `args` must give the hosts so many CPUs that a replica
    does not fit there.
    """
    _check_free(port)
    head = {"num_cpus": 1 if worker_nodes else cpus, "include_dashboard": False}
    with environment(ray_environment()):
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(worker_nodes):
                cluster.add_node(num_cpus=cpus)
            ray.init(address=cluster.address, log_to_driver=False)
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(build_app(dict(args)), name=APP, route_prefix="/")
            yield App(f"http://127.0.0.1:{port}", cluster)
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def ray_environment() -> dict[str, str]:
    """The environment in which `make serve` starts Ray."""
    lines = (_CLUSTER / "serve.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def _check_free(port: int) -> None:
    """Raises OSError if the port is in use: Serve's proxy would share it and its requests."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


async def wait_until(
    condition: Callable[[], bool], bound_s: float, what: str, every_s: float = 0.2
) -> None:
    """Polls state that nothing notifies of, such as Ray's."""
    loop = asyncio.get_running_loop()
    end = loop.time() + bound_s
    while not await loop.run_in_executor(None, condition):
        if loop.time() > end:
            raise TimeoutError(f"{what}: not within {bound_s:.0f} s")
        await asyncio.sleep(every_s)

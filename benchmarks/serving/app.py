"""The application on a Ray cluster of its own, as benchmarks and long tests start and stop it."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

from deployments.app import build

APP = "spindle"
_WORKER_ENV = {"OMP_WAIT_POLICY": "PASSIVE", "RAY_metrics_report_interval_ms": "500"}


@dataclass(frozen=True, slots=True)
class Actor:
    """One living actor, as Ray's state API shows it."""

    identity: str
    name: str
    kind: str
    pid: int
    node: str


@dataclass(frozen=True, slots=True)
class App:
    url: str
    cluster: Cluster

    def actors(self) -> list[Actor]:
        alive = list_actors(
            filters=[("state", "=", "ALIVE")], limit=1000, raise_on_missing_output=False
        )
        return [
            Actor(one.actor_id, one.name or "", one.class_name, one.pid or 0, one.node_id or "")
            for one in alive
        ]

    def ours(self) -> list[Actor]:
        """Drafters, verifiers and their ranks; Serve's own actors are not among them."""
        return [actor for actor in self.actors() if actor.name.startswith(f"{APP}:")]


@contextmanager
def running(
    args: Mapping[str, Any], port: int, worker_nodes: int = 0, cpus: float = 8
) -> Iterator[App]:
    """Serve on `worker_nodes` fake nodes beside the head; without one the head hosts everything.

    With worker nodes the head has one CPU: give the hosts so large a share in `args` that a
    replica does not fit there.
    """
    os.environ.update(_WORKER_ENV)
    head = {"num_cpus": 1 if worker_nodes else cpus, "include_dashboard": True}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(worker_nodes):
            cluster.add_node(num_cpus=cpus)
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(dict(args)), name=APP, route_prefix="/")
        yield App(f"http://127.0.0.1:{port}", cluster)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


async def until(condition: Callable[[], bool], bound_s: float, what: str) -> None:
    """Polls something outside of our own code; benchmarks only."""
    loop = asyncio.get_running_loop()
    end = loop.time() + bound_s
    while not await loop.run_in_executor(None, condition):
        if loop.time() > end:
            raise TimeoutError(f"{what}: not within {bound_s:.0f} s")
        await asyncio.sleep(0.2)

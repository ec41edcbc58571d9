"""Determines whether a config fits into the nodes of a cluster, and if not, which resource is
missing."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.config import AppConfig
from cluster.footprint import RUNTIME_BYTES, Footprint, footprints, trainer
from cluster.placement import ACCELERATOR, HEAD_NODE, HEAD_SHARE, OWN_CPUS, Placement, plan

Node = Mapping[str, float]
"""Amounts by Ray's resource names: CPU, GPU, memory (bytes), accelerator_type:L4, ... In addition
`gpu_memory`, the bytes of each GPU, which Ray does not count. A resource that is unknown on all
nodes is not checked."""

_UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_GPUS = Path("/proc/driver/nvidia/gpus")
_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Memory limits of the container, if this process runs in one."""


def this_machine() -> Node:
    gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    return {"CPU": len(os.sched_getaffinity(0)), "GPU": gpus, "memory": _memory()}


def ray_nodes() -> list[Node]:
    """The nodes of the running cluster that this process belongs to."""
    import ray

    # Ray lists no GPU entry for a node without GPUs.
    return [{"GPU": 0, **node["Resources"]} for node in ray.nodes() if node["Alive"]]


def parse_node(text: str) -> Node:
    """Parses `CPU=8,GPU=2,memory=64GB,gpu_memory=80GB`."""
    node: dict[str, float] = {"GPU": 0}
    for part in text.split(","):
        resource, _, amount = part.strip().partition("=")
        match = _AMOUNT.fullmatch(amount.strip())
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(
                f"{part!r} is not RESOURCE=AMOUNT, as in CPU=8,GPU=2,memory=64GB,gpu_memory=80GB"
            )
        node[resource] = float(match[1]) * _UNITS[match[2].upper()]
    return node


def _memory() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [file.read_text().strip() for file in _MEMORY_LIMITS if file.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])


_UNSTATED = ("memory",)
"""Resources that are checked only on nodes whose amount is known."""
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources that must be on one node."""

    what: str
    """The processes that need them, for messages."""
    resources: Mapping[str, float]


def missing(config: AppConfig, nodes: Sequence[Node], replicas: int | None = None) -> list[str]:
    """Why these nodes cannot hold the application: the first process that finds no room, and those
    that lack GPU memory; empty if they can. `replicas`: default the config's minimum. If no node is
    marked as the head, the first one is."""
    if nodes and not any(HEAD_NODE in node for node in nodes):
        nodes = [{HEAD_NODE: 1.0, **nodes[0]}, *nodes[1:]]
    placement = plan(config)
    processes = footprints(config, placement)
    count = config.scaling.min_replicas if replicas is None else replicas
    demands = [*_demands(placement, processes) * count, *_SERVICES]
    if (learns := trainer(config)) is not None:
        resources = {"CPU": learns.cpus, "GPU": learns.gpus, "memory": learns.host_bytes}
        demands.append(Demand(learns.process, resources))
        processes.append(learns)
    return _unpacked(demands, nodes) or _gpu_memory(placement, processes, nodes)


_OWN = {"CPU": OWN_CPUS, "memory": RUNTIME_BYTES}
_SERVICES = [Demand("ingress", {HEAD_NODE: HEAD_SHARE, **_OWN}), Demand("router", _OWN)]


def _demands(placement: Placement, processes: Sequence[Footprint]) -> list[Demand]:
    demands = []
    for number, bundle in enumerate(placement.bundles):
        inside = [process for process in processes if process.bundle == number]
        memory = sum(process.host_bytes for process in inside)
        names = ", ".join(process.process for process in inside)
        demands.append(Demand(names, {**bundle, "memory": memory}))
    return demands


def _unpacked(demands: Sequence[Demand], nodes: Sequence[Node]) -> list[str]:
    """The first demand that cannot be packed: largest first, each on the first node with room, as
    Ray packs. Another packing might fit, but Ray would not find it."""
    left = [dict(node) for node in nodes]
    for demand in sorted(demands, key=_size, reverse=True):
        free = next((node for node in left if _fits(demand, node)), None)
        if free is None:
            return [_shortage(demand, left)]
        for resource, amount in demand.resources.items():
            if resource in free:
                free[resource] -= amount
    return []


def _shortage(demand: Demand, left: Sequence[Node]) -> str:
    """Names the resources that no node has enough of; if there are none, those that some lack."""
    lacks = {
        resource: [_has(node, resource) < amount - _EPSILON for node in left]
        for resource, amount in demand.resources.items()
    }
    nowhere = [resource for resource, lacking in lacks.items() if all(lacking)]
    named = nowhere or [resource for resource, lacking in lacks.items() if any(lacking)]
    most = {one: max((_has(node, one) for node in left), default=0.0) for one in nowhere}
    rest = f"has more left than {_list(most)}" if nowhere else "has all of it left"
    needed = _list({resource: demand.resources[resource] for resource in named})
    return f"{', '.join(named)}: {demand.what} needs {needed} on one node, and none {rest}"


def _gpu_memory(
    placement: Placement, processes: Sequence[Footprint], nodes: Sequence[Node]
) -> list[str]:
    """Processes that need more GPU memory than there is; checked only if it is known for every node
    with GPUs."""
    sizes = [node.get("gpu_memory") for node in nodes if node.get("GPU")]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return []
    return [
        f"gpu_memory: {process.process} needs {_amount('memory', process.gpu_bytes)} on "
        f"{process.gpus:g} GPU, and the largest has {_amount('memory', max(known))}"
        for process in processes
        if process.gpu_bytes > max(known) * process.gpus
    ]


def _fits(demand: Demand, node: Node) -> bool:
    return all(
        _has(node, resource) >= amount - _EPSILON for resource, amount in demand.resources.items()
    )


def _has(node: Node, resource: str) -> float:
    return node.get(resource, float("inf") if resource in _UNSTATED else 0.0)


def _size(demand: Demand) -> tuple[float, ...]:
    resources = (HEAD_NODE, "GPU", "memory", "CPU")  # the head's demands fit nowhere else
    return tuple(demand.resources.get(resource, 0.0) for resource in resources)


def _list(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_amount(name, value)}" for name, value in amounts.items())


def _amount(resource: str, amount: float) -> str:
    if resource.startswith(ACCELERATOR):  # of which Ray counts a share of one
        return "1" if amount else "0"
    return f"{amount / 1e6:,.0f} MB" if resource == "memory" else f"{amount:g}"

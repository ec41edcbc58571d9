"""What there is: the resources of the machines that a config is checked against."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

Node = Mapping[str, float]
"""By resource, as Ray names them: CPU, GPU, memory (bytes), accelerator_type:L4, ... A resource
that is not known of any node is not checked. `gpu_memory`, which Ray does not count: the bytes
of each GPU."""

_UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_GPUS = Path("/proc/driver/nvidia/gpus")
_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of the container that we may be in."""


def this_machine() -> Node:
    gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    return {"CPU": len(os.sched_getaffinity(0)), "GPU": gpus, "memory": _memory()}


def ray_nodes(address: str) -> list[Node]:
    """Of a running cluster: the one that this process belongs to, if it does. Raises
    ConnectionError where there is none."""
    import ray

    if not ray.is_initialized():
        ray.init(address)
    # A node without GPUs does not mention them.
    return [{"GPU": 0, **node["Resources"]} for node in ray.nodes() if node["Alive"]]


def parse_node(text: str) -> Node:
    """`CPU=8,GPU=2,memory=64GB,gpu_memory=80GB`"""
    node: dict[str, float] = {"GPU": 0}
    for part in text.split(","):
        resource, _, amount = part.strip().partition("=")
        said = _AMOUNT.fullmatch(amount.strip())
        if said is None or said[2].upper() not in _UNITS:
            raise ValueError(
                f"{part!r} is not RESOURCE=AMOUNT, as in CPU=8,GPU=2,memory=64GB,gpu_memory=80GB"
            )
        node[resource] = float(said[1]) * _UNITS[said[2].upper()]
    return node


def _memory() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [file.read_text().strip() for file in _MEMORY_LIMITS if file.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])

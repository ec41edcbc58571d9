"""The resources of the nodes that a config is checked against."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

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


def ray_nodes(address: str) -> list[Node]:
    """The nodes of a running cluster; the process's own, if it belongs to one. Raises
    ConnectionError if there is none."""
    import ray

    if not ray.is_initialized():
        ray.init(address)
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

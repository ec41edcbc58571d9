"""The machines that a plan is made for: GPUs by a table, this machine by what it is."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.fitting import Node, this_machine
from cluster.plan.simulator.hardware import A100, A100_40GB, L40, V100, Gpu

NODE = 8
"""The most GPUs of one node."""
_AS_PRINTED = Path("/proc/driver/nvidia/gpus")
_ITEM = re.compile(r"(\d+)\s*x\s*([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuType:
    gpu: Gpu
    dollars: float | None
    """Per hour; None: no price is known."""


# NVIDIA's data sheets, dense half precision ("L4": 121 TFLOPS, 300 GB/s; "L40S": 362, 864; "H100
# SXM": 989, 3,350; "H200 SXM": 989, 4,800; "DGX B200": 2,250, 8,000) and, for the A10G, AWS's page
# of G5. Prices: A100 to H200 the middle of specialised clouds on demand (Mercatus, cloud GPU
# pricing, May 2026: 1.10-1.50, 2.50-3.50, 3.50-4.50); L4, A10G, L40S AWS on demand in us-east-1
# (g6, g5 and g6e.xlarge). They differ threefold between providers: `--price` gives your own.
GPUS: Mapping[str, GpuType] = {
    "V100": GpuType(V100, None),
    "L4": GpuType(Gpu(121e12, 300e9, 24e9, link=32e9, host_link=32e9), 0.80),
    "A10G": GpuType(Gpu(70e12, 600e9, 24e9, link=32e9, host_link=32e9), 1.01),
    "L40": GpuType(L40, None),
    "L40S": GpuType(Gpu(362e12, 864e9, 48e9, link=32e9, host_link=32e9), 1.86),
    "A100-40G": GpuType(A100_40GB, None),
    "A100": GpuType(A100, 1.30),
    "H100": GpuType(Gpu(989e12, 3350e9, 80e9, link=450e9, host_link=64e9), 3.00),
    "H200": GpuType(Gpu(989e12, 4800e9, 141e9, link=450e9, host_link=64e9), 4.00),
    "B200": GpuType(Gpu(2250e12, 8000e9, 180e9, link=900e9, host_link=64e9), None),
}


@dataclass(frozen=True, slots=True)
class Machines:
    """What there is to place on."""

    gpus: Mapping[str, int]
    """How many of each type; empty: this machine's processors."""
    nodes: Sequence[Node]
    """The same, as `cluster.check` takes them."""
    prices: Mapping[str, float | None]

    def dollars(self, used: Mapping[str, int]) -> float | None:
        """Per hour."""
        prices = [self.prices[name] for name in used]
        if not used or None in prices:
            return None
        return sum(count * (self.prices[name] or 0.0) for name, count in used.items())


def described(text: str | None, prices: Sequence[str]) -> Machines:
    """`4xH100,2xL4`; None: this machine. Raises ValueError."""
    own = {name: kind.dollars for name, kind in GPUS.items()} | dict(map(_price, prices))
    if text is None:
        here = _gpus_here()
        return Machines(here, _nodes(here) if here else [this_machine()], own)
    gpus: dict[str, int] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None or not int(match[1]):
            raise ValueError(f"--gpus: {item.strip()!r} is not COUNTxTYPE, as in 4xH100,2xL4")
        name = _known("--gpus", match[2])
        gpus[name] = gpus.get(name, 0) + int(match[1])
    return Machines(gpus, _nodes(gpus), own)


def _known(option: str, name: str) -> str:
    for known in GPUS:
        if known.lower() == name.lower():
            return known
    raise ValueError(f"{option}: there is no {name} in the table, which has {', '.join(GPUS)}")


def _price(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        dollars = float(amount)
    except ValueError:
        dollars = -1.0
    if not 0.0 <= dollars < 1e6:
        raise ValueError(f"--price: {text!r} is not TYPE=DOLLARS an hour, as in H100=2.50")
    return _known("--price", name), dollars


def _nodes(gpus: Mapping[str, int]) -> list[Node]:
    """With room for every process: GPUs and their memory are what a plan is about."""
    nodes: list[Node] = []
    for name, count in gpus.items():
        memory = GPUS[name].gpu.memory
        for first in range(0, count, NODE):
            own = {"CPU": 64.0, "GPU": float(min(NODE, count - first)), "gpu_memory": memory}
            nodes.append({**own, f"accelerator_type:{name}": 1.0})
    return nodes


def _gpus_here() -> dict[str, int]:
    found: dict[str, int] = {}
    for gpu in _AS_PRINTED.iterdir() if _AS_PRINTED.is_dir() else ():
        model = (gpu / "information").read_text().splitlines()[0]
        words = model.upper().replace("-", " ").replace("40GB", "40G").split()
        name = next((one for one in GPUS if {*one.split("-")} <= {*words}), None)
        if name is None:
            raise ValueError(
                f"--gpus: {model.strip()} is not in the table: name one that is like it"
            )
        found[name] = found.get(name, 0) + 1
    return found

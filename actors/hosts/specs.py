"""Specs of the target and its drafters, as a config describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cluster.checkpoint_files import Quantize
from cluster.config.drafter_kinds import drafter_kind

if TYPE_CHECKING:  # takes a second to import, which a replica whose models are actors need not wait
    import torch

Backend = Literal["native", "vllm"]
Where = Literal["actor", "inline"]
"""In a Ray actor of its own, or in the coordinator's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """Where the processes of a target or drafter run, and with which processors."""

    placement: Where = "inline"
    gpus: float = 0.0
    """For each rank or instance; 0 runs it on the CPU."""
    cpus: float = 0.05
    """For each actor, as Ray counts them, to place it; `threads` is what it computes with."""
    threads: int = 1
    """For each actor; inline, the threads of the process are used."""
    bundles: tuple[int, ...] = ()
    """Bundles of the replica's placement group, one for each actor; empty: any bundle."""

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True, slots=True)
class TargetSpec(PlacementSpec):
    checkpoint: Path
    dtype: "torch.dtype | None"
    """None: what its device multiplies fastest."""
    kv_tokens: int
    backend: Backend = "native"
    quantize: Quantize = "none"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's own arguments."""
    tensor_parallel: int = 1
    """The number of ranks, which vLLM starts itself, within one actor."""
    feature_layers: tuple[int, ...] = ()
    """The layers whose hidden states the heads read, which vLLM must know before it loads."""


@dataclass(frozen=True, slots=True)
class DrafterSpec(PlacementSpec):
    name: str
    kind: str = "model"
    """One of DRAFTER_KINDS."""
    checkpoint: Path | None = None
    """None for lookups."""
    dtype: "torch.dtype | None" = None
    """As in TargetSpec."""
    capacity: int = 16
    """The most requests that one lane of it serves at once."""
    kv_tokens: int = 32_768
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of its kind."""
    target: Path | None = None
    """The target's checkpoint, for heads, which may take weights from there."""
    instances: int = 1
    """The number of its lanes."""

    def __post_init__(self) -> None:
        drafter_kind(self.kind)  # raises if there is no such kind

    @property
    def is_lookup(self) -> bool:
        return drafter_kind(self.kind).lookup

    @property
    def lanes(self) -> list[str]:
        """The names of its lanes."""
        if self.instances == 1:
            return [self.name]
        return [f"{self.name}/{number}" for number in range(self.instances)]

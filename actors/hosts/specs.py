"""What is to be loaded: the target and its drafters, as a config describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Backend = Literal["native", "vllm"]
Where = Literal["actor", "inline"]
"""In a Ray actor of its own, or in the coordinator's process."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    checkpoint: Path
    dtype: torch.dtype | None
    """None: what its device multiplies fastest."""
    kv_tokens: int
    swap_tokens: int = 0
    backend: Backend = "native"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Of vLLM."""
    tensor_parallel: int = 1
    """Native: that many rank actors. vLLM starts its ranks itself, in one actor."""
    placement: Where = "inline"
    gpus: float = 0.0
    """Of each rank; 0 runs it on the CPU."""
    cpus: float = 0.05
    """Of each actor, as Ray counts them; what it computes with is `threads`."""
    threads: int = 1
    """Of each actor. Inline, the process's own threads are used."""
    bundles: tuple[int, ...] = ()
    """Of the replica's placement group, one for each actor; empty: wherever there is room."""

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def actors(self) -> int:
        """Processes that we start for it."""
        return self.tensor_parallel if self.backend == "native" else 1


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    name: str
    kind: Literal["model", "ngram", "suffix"] = "model"
    checkpoint: Path | None = None
    """Of a model."""
    dtype: torch.dtype | None = None
    """As in TargetSpec, but float32 for models that compiled loops run."""
    capacity: int = 16
    """Requests that a lane of it serves at once."""
    kv_tokens: int = 32_768
    past_tokens: int = 100_000
    """Of past outputs, which kind suffix remembers."""
    instances: int = 1
    """Lanes of it."""
    placement: Where = "inline"
    gpus: float = 0.0
    cpus: float = 0.05
    threads: int = 1
    bundles: tuple[int, ...] = ()
    """One for each instance, as in TargetSpec."""

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def lanes(self) -> list[str]:
        """Their names."""
        if self.instances == 1:
            return [self.name]
        return [f"{self.name}/{number}" for number in range(self.instances)]

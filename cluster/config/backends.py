"""The capabilities of each verifier backend. A config that requires others is refused."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    trees: bool
    """Verifies draft trees; otherwise chains only."""
    engine_args: bool
    """Takes `engine_args`, arguments specific to this backend."""
    ranks: bool
    """Splits the target over several tensor-parallel ranks, which it starts itself."""
    quantized: bool
    """Reads quantized checkpoints."""
    adapters: bool
    """Runs LoRA adapters."""
    embeddings: bool
    """Hands out layer 0 as well, among the hidden states that some kinds of drafters read."""


BACKENDS: Mapping[str, Backend] = {
    "native": Backend(
        trees=True,
        engine_args=False,
        ranks=False,
        quantized=False,
        adapters=False,
        embeddings=True,
    ),
    "vllm": Backend(
        trees=False,
        engine_args=True,
        ranks=True,
        quantized=True,
        adapters=True,
        embeddings=False,
    ),
}


def able(ability: str) -> str:
    """The names of the backends with this capability, for error messages."""
    return " or ".join(name for name, backend in BACKENDS.items() if getattr(backend, ability))

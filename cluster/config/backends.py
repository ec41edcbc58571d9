"""The capabilities of each verifier backend. A config that requires others is refused."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    trees: bool
    """Verifies draft trees; otherwise chains only."""
    swap: bool
    """Can keep the KV of preempted requests in host memory; otherwise it is freed and
    recomputed."""
    engine_args: bool
    """Takes `engine_args`, arguments specific to this backend."""
    layouts: bool
    """Its attention layout can be chosen; otherwise it has one of its own."""
    rank_actors: bool
    """Each tensor-parallel rank is an actor of Spindle; otherwise the backend starts its ranks
    itself."""
    quantized: bool
    """Reads quantized checkpoints."""
    features: bool
    """Hands out hidden states, which some kinds of drafters read."""


BACKENDS: Mapping[str, Backend] = {
    "native": Backend(
        trees=True,
        swap=True,
        engine_args=False,
        layouts=True,
        rank_actors=True,
        quantized=False,
        features=True,
    ),
    "vllm": Backend(
        trees=False,
        swap=False,
        engine_args=True,
        layouts=False,
        rank_actors=False,
        quantized=True,
        features=False,
    ),
}


def able(ability: str) -> str:
    """The names of the backends with this capability, for error messages."""
    return " or ".join(name for name, backend in BACKENDS.items() if getattr(backend, ability))

"""What each verifier backend can do. A config that asks for more is refused."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    trees: bool
    """Verifies draft trees; the others verify chains."""
    swap: bool
    """Keeps the KV of preempted requests in host memory; the others free and recompute it."""
    engine_args: bool
    """Has arguments of its own, beside those that every backend knows."""
    rank_actors: bool
    """Each tensor-parallel rank is an actor of ours; the others start ranks of their own."""


BACKENDS: Mapping[str, Backend] = {
    "native": Backend(trees=True, swap=True, engine_args=False, rank_actors=True),
    "vllm": Backend(trees=False, swap=False, engine_args=True, rank_actors=False),
}


def able(ability: str) -> str:
    """The backends that can, for an error that names the way out."""
    return " or ".join(name for name, backend in BACKENDS.items() if getattr(backend, ability))

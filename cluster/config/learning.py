"""Learning from traffic: what a drafter's section `learn` says."""

from typing import Annotated

from pydantic import Field

from cluster.config.section import AtLeastOne, Cpus, Gpus, Section
from policies import ranges

QUEUED_TOKENS = 16_384
"""Tokens of lessons that wait, prompts included: at a replica, and at the trainer."""


class LearnConfig(Section):
    share: Annotated[float, Field(gt=0, le=64)] = 0.1
    """How much of one processor the trainer uses on average; above 1 of several."""
    tenants: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The tenants whose requests it learns from; `"*"`: all. Without `api_keys` it learns from
    every request (docs/security.md)."""
    folder: str | None = None
    """Where versions are kept, on the trainer's node; null: `learned` in the cache folder."""
    versions: AtLeastOne = 4
    """How many versions are kept there."""
    memory_tokens: Annotated[int, Field(ge=1024, le=ranges.COUNT.most)] = 32_768
    """Tokens of earlier requests that it repeats, in memory alone. Each takes as much as a token of
    `limits.feature_tokens`."""
    cpus: Cpus = 0.05
    """CPUs that the trainer reserves in Ray."""
    gpus: Gpus = 0
    """GPUs of the trainer; 0 trains on the CPU."""
    threads: AtLeastOne = 1
    """Computing threads of the trainer."""

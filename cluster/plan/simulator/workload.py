"""Synthetic requests and their lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.request import Slo

Floats = NDArray[np.float64]

_NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload."""

    name: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    """Length of the target's output; policies do not see it."""
    max_tokens: int
    """The request's limit."""
    domain: str = ""
    slo: Slo = _NO_SLO
    priority: int = 0
    tenant: str = ""
    predicted_tokens: float | None = None
    """Output length that is predicted on arrival."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal distributions, which lengths of chat traces roughly follow."""

    prompt_mean: float = 256.0
    prompt_spread: float = 0.6
    """Standard deviation of the logarithm; 0: all equal."""
    output_mean: float = 200.0
    output_spread: float = 0.6
    longest: int = 2048
    """The longest prompt and output; also every request's max_tokens."""


def draw(
    times: Sequence[float] | Floats,
    seed: int,
    lengths: Lengths = Lengths(),
    domains: Sequence[str] = ("",),
) -> list[Arrival]:
    """Requests at these times, of equally frequent domains."""
    rng = np.random.default_rng([seed, 2])
    count = len(times)
    prompts = _lognormal(rng, lengths.prompt_mean, lengths.prompt_spread, lengths.longest, count)
    outputs = _lognormal(rng, lengths.output_mean, lengths.output_spread, lengths.longest, count)
    chosen = rng.integers(0, len(domains), count)
    return [
        Arrival(f"r{i}", float(at_s), prompts[i], outputs[i], lengths.longest, domains[chosen[i]])
        for i, at_s in enumerate(times)
    ]


def _lognormal(
    rng: np.random.Generator, mean: float, spread: float, longest: int, count: int
) -> list[int]:
    drawn = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count)
    return np.clip(np.rint(drawn), 1, longest).astype(int).tolist()

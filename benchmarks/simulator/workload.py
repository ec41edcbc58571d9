"""Who asks for what, and when: synthetic arrivals, replayed traces, and the papers' SLOs."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from policies.request import Slo

Floats = NDArray[np.float64]

_NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Arrival:
    name: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    """What the target will say; nobody but the target knows."""
    max_tokens: int
    """What the request allows."""
    domain: str = ""
    slo: Slo = _NO_SLO
    priority: int = 0
    tenant: str = ""
    predicted_tokens: float | None = None
    """What a length predictor says as it arrives."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal, as the lengths of chat traces roughly are."""

    prompt_mean: float = 256.0
    prompt_spread: float = 0.6
    """Standard deviation of the logarithm; 0: all alike."""
    output_mean: float = 200.0
    output_spread: float = 0.6
    longest: int = 2048
    """Of prompts and of outputs; also what every request allows."""


def poisson(rate: float, count: int, seed: int) -> Floats:
    """Arrival times; `rate` per second."""
    return np.cumsum(np.random.default_rng([seed, 1]).exponential(1.0 / rate, count))


def bursty(rate: float, count: int, seed: int, variation: float = 3.0) -> Floats:
    """Gamma-distributed gaps with this coefficient of variation (Poisson has 1)."""
    shape = variation**-2
    gaps = np.random.default_rng([seed, 1]).gamma(shape, 1.0 / (rate * shape), count)
    return np.cumsum(gaps)


def draw(
    times: Sequence[float] | Floats,
    seed: int,
    lengths: Lengths = Lengths(),
    domains: Sequence[str] = ("",),
) -> list[Arrival]:
    """Requests of equally frequent domains at these times."""
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


def replay_csv(
    path: Path, *, begin_s: float = 0.0, end_s: float = np.inf, speed: float = 1.0
) -> list[Arrival]:
    """A trace with columns arrival_s, prompt_tokens, output_tokens, between two of its times and
    `speed` times as fast. Every request allows what the longest output of the trace takes."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if begin_s <= float(row["arrival_s"]) < end_s]
    longest = max((int(row["output_tokens"]) for row in rows), default=1)
    return [
        Arrival(
            f"r{i}",
            (float(row["arrival_s"]) - begin_s) / speed,
            max(1, int(row["prompt_tokens"])),
            max(1, int(row["output_tokens"])),
            max(1, longest),
        )
        for i, row in enumerate(rows)
    ]


def replay_adaserve(path: Path, idle_tpot_s: float, *, speed: float = 1.0) -> list[Arrival]:
    """AdaServe's artifact: SLOs come with the requests, relative ones to the idle latency per
    token; each of its three tasks (by SLO: coding, chat, summarising) is a domain."""
    arrivals = []
    for i, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        ratio = row["slo_ratio"]
        arrivals.append(
            Arrival(
                f"r{i}",
                row["arrival_s"] / speed,
                row["prompt_tokens"],
                row["output_tokens"],
                row["output_tokens"],
                domain="coding" if ratio > 0 else "chat" if ratio >= -50 else "summarising",
                slo=Slo(tpot_s=ratio * idle_tpot_s if ratio > 0 else -ratio / 1000),
            )
        )
    return arrivals


def adaserve_slos(
    arrivals: Sequence[Arrival],
    idle_tpot_s: float,
    seed: int,
    mix: Sequence[float] = (0.6, 0.2, 0.2),
    strictest: float = 1.2,
) -> list[Arrival]:
    """TPOTs of `strictest` times the idle latency, 50 ms and 150 ms (AdaServe, section 6.1)."""
    classes = (
        ("coding", Slo(tpot_s=strictest * idle_tpot_s)),
        ("chat", Slo(tpot_s=0.050)),
        ("summarising", Slo(tpot_s=0.150)),
    )
    chosen = np.random.default_rng([seed, 3]).choice(len(classes), len(arrivals), p=mix)
    return [
        replace(arrival, domain=classes[number][0], slo=classes[number][1])
        for arrival, number in zip(arrivals, chosen.tolist(), strict=True)
    ]


def specserve_slo(arrivals: Sequence[Arrival], scale: float = 1.0) -> list[Arrival]:
    """TTFT 200 ms and TPOT 30 ms, both times `scale` (SpecServe, section 7.1: 0.8 to 1.4)."""
    slo = Slo(ttft_s=0.200 * scale, tpot_s=0.030 * scale)
    return [replace(arrival, slo=slo) for arrival in arrivals]


def predict_lengths(arrivals: Sequence[Arrival], tau: float, seed: int) -> list[Arrival]:
    """Output lengths as a predictor of this rank correlation (Kendall's τ-b) would say them:
    true ones times log-normal errors, as wide as it takes."""
    if not 0.0 < tau <= 1.0:
        raise ValueError(f"tau must be in (0, 1], got {tau}")
    true = np.array([arrival.output_tokens for arrival in arrivals], np.float64)
    error = np.random.default_rng([seed, 4]).standard_normal(len(true))
    narrow, wide = 0.0, 64.0
    for _ in range(40):
        width = (narrow + wide) / 2
        reached = kendalltau(true, true * np.exp(width * error)).statistic
        narrow, wide = (width, wide) if reached > tau else (narrow, width)
    predicted = (true * np.exp(narrow * error)).tolist()
    return [
        replace(arrival, predicted_tokens=tokens)
        for arrival, tokens in zip(arrivals, predicted, strict=True)
    ]

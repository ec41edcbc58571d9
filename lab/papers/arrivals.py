"""The requests of one cell: lengths of its dataset at the times of its workload."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from cluster.plan.simulator.randomness import generator
from cluster.plan.simulator.workload import Arrival, Floats, draw
from lab.papers.blocks import Dataset, Workload
from lab.papers.row import Scalar
from lab.papers.settings import Paper
from policies.request import Slo

_PEAK_WIDTH = 1 / 8
_PEAK_SHARE = 2 / 3
"""A category with a peak: width of the bell as a share of the run, and its share of the requests;
the others arrive at a constant rate."""
_STEPS = 2049
URGENT = "coding"
"""The category whose share the axis `urgent` sets."""


def arrivals(
    paper: Paper, case: Mapping[str, Scalar], seed: int, idle_tpot_s: float, traces: Path
) -> list[Arrival]:
    """In the order of their times."""
    dataset = paper.datasets[str(case["dataset"])]
    workload = _in_case(paper.workloads[str(case["workload"])], case)
    parts = _shares(str(case["dataset"]), dataset, case)
    times = _times(workload, seed, traces)
    chosen = generator(seed, "category").choice(len(parts), len(times), p=list(parts.values()))
    requests = []
    for number, part in enumerate(parts):
        at_s = times[chosen == number]
        if part in workload.peaks:
            at_s = _peaking(len(at_s), workload, part, seed)
        lengths = paper.datasets[part].lengths
        assert lengths is not None, "a part of a mix is not a mix"
        # Each part has its own seed, so that lengths do not depend on the shares.
        part_seed = int(generator(seed, part).integers(2**31))
        requests += draw(at_s, part_seed, lengths, (part,))
    requests.sort(key=lambda request: request.at_s)
    slos = {part: _slo(workload, part, case, idle_tpot_s) for part in parts}
    return [
        replace(
            request,
            name=f"r{number}",
            slo=slos[request.domain],
            output_tokens=int(case.get("output_tokens", request.output_tokens)),
        )
        for number, request in enumerate(requests)
    ]


def _in_case(workload: Workload, case: Mapping[str, Scalar]) -> Workload:
    """The workload with the case's values of its fields."""
    axes = {name: case[name] for name in ("requests", "rate", "clients") if name in case}
    return workload.model_copy(update=axes)


def _shares(name: str, dataset: Dataset, case: Mapping[str, Scalar]) -> dict[str, float]:
    if not dataset.mix_of:
        return {name: 1.0}
    if "urgent" not in case:
        return dict(dataset.mix_of)
    urgent = float(case["urgent"])
    others = (1.0 - urgent) / (len(dataset.mix_of) - 1)
    return {part: urgent if part == URGENT else others for part in dataset.mix_of}


def _times(workload: Workload, seed: int, traces: Path) -> Floats:
    if workload.arrivals == "replay":
        return _replayed(workload, traces)
    assert workload.requests is not None
    if workload.arrivals in ("together", "closed"):
        return np.zeros(workload.requests)
    assert workload.rate is not None
    if workload.arrivals == "poisson":
        return poisson(workload.rate, workload.requests, seed)
    return bursty(workload.rate, workload.requests, seed, workload.variation)


def poisson(rate: float, count: int, seed: int) -> Floats:
    """Arrival times; `rate` per second."""
    return np.cumsum(np.random.default_rng([seed, 1]).exponential(1.0 / rate, count))


def bursty(rate: float, count: int, seed: int, variation: float = 3.0) -> Floats:
    """Gamma-distributed gaps with this coefficient of variation (Poisson has 1)."""
    shape = variation**-2
    gaps = np.random.default_rng([seed, 1]).gamma(shape, 1.0 / (rate * shape), count)
    return np.cumsum(gaps)


def _replayed(workload: Workload, traces: Path) -> Floats:
    """A trace between two of its times, scaled to the workload's mean rate if it has one."""
    assert workload.trace is not None
    assert workload.end_s is not None
    with (traces / workload.trace).open(newline="") as file:
        rows = csv.DictReader(file) if workload.trace.endswith(".csv") else map(json.loads, file)
        times = np.array([float(row["arrival_s"]) for row in rows])
    times = times[(times >= workload.begin_s) & (times < workload.end_s)] - workload.begin_s
    if workload.rate is None:
        return times
    recorded = len(times) / (workload.end_s - workload.begin_s)
    return times * (recorded / workload.rate)


def _peaking(count: int, workload: Workload, part: str, seed: int) -> Floats:
    """`count` times in the run, at a rate that is a bell over a constant."""
    assert workload.requests is not None
    assert workload.rate is not None
    shape = workload.variation**-2
    gaps = generator(seed, part, "peak").gamma(shape, 1.0 / shape, count + 1)
    even = np.cumsum(gaps)[:-1] / gaps.sum()
    moments = np.linspace(0.0, 1.0, _STEPS)
    bell = ndtr((moments - workload.peaks[part]) / _PEAK_WIDTH)
    bell = (bell - bell[0]) / (bell[-1] - bell[0])
    arrived = _PEAK_SHARE * bell + (1.0 - _PEAK_SHARE) * moments
    return np.interp(even, arrived, moments) * (workload.requests / workload.rate)


def _slo(workload: Workload, part: str, case: Mapping[str, Scalar], idle_tpot_s: float) -> Slo:
    slo = workload.slo.get(part)
    if slo is None:
        return Slo()
    if any(other.tpot_idle_multiple is not None for other in workload.slo.values()):
        multiple = slo.tpot_idle_multiple
        if multiple is None:
            return Slo(slo.ttft_s, slo.tpot_s)
        return Slo(slo.ttft_s, float(case.get("slo_scale", multiple)) * idle_tpot_s)
    scale = float(case.get("slo_scale", 1.0))
    return Slo(_scaled(slo.ttft_s, scale), _scaled(slo.tpot_s, scale))


def _scaled(seconds: float | None, scale: float) -> float | None:
    return None if seconds is None else seconds * scale


def with_priorities(requests: Sequence[Arrival], priorities: Mapping[str, int]) -> list[Arrival]:
    return [replace(r, priority=priorities.get(r.domain, 0)) for r in requests]

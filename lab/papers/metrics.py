"""The papers' metrics of one finished run, as the YAML files define them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.stats import spearmanr

from cluster.plan.simulator.run_report import FinishedRequest, Report
from lab.papers.experiment import Experiment
from lab.papers.rank_prompts import PREFIX
from lab.papers.run_observer import Forward, RunObserver

_SAMPLE_S = 5.0
_IDLE_S = 0.5
"""Longer than any draft or forward here: without one for so long, nothing runs."""
_WINDOWS = {"early": (1, 50), "late": (151, 200)}
"""Windows of output tokens, for LAPS-SD's Fig. 3."""
_RATE_EVERY = 10
ENDS: Mapping[str, tuple[float, int]] = {"flood": (600.0, 500), "thinking_flood": (1200.0, 100)}
"""By workload, the seconds and finished requests after which no metric needs the run."""


@dataclass(frozen=True, slots=True)
class Run:
    experiment: Experiment
    report: Report | None
    """None if the run was ended early (ENDS)."""
    observer: RunObserver

    @property
    def full_report(self) -> Report:
        assert self.report is not None, "a metric needs a run that was ended early"
        return self.report

    @property
    def served(self) -> Sequence[FinishedRequest]:
        """Without rank prompts."""
        return [r for r in self.full_report.served if not r.arrival.name.startswith(PREFIX)]


def spin(run: Run) -> dict[str, float]:
    report = run.full_report
    accepted = report.tally.accepted / max(1, report.tally.committed)
    return {"goodput": report.throughput, "accepted_goodput": accepted * report.throughput}


def specserve(run: Run) -> dict[str, float]:
    report, observer = run.full_report, run.observer
    samples = _sampled(observer.forwards)
    batches = [sample.requests for sample in samples]
    lengths = [sample.drafted / sample.requests for sample in samples if sample.requests]
    rounds = max(1, observer.decoding_rounds)
    return {
        "speed": 1.0 / report.mean_latency_s,
        "slo_attainment": report.attainment,
        "goodput": report.goodput,
        "draft_tokens": report.tally.drafted / rounds,
        "accepted_tokens": report.tally.accepted / rounds,
        "acceptance_rate": observer.acceptance_sum / max(1, observer.drafted_rounds),
        "peak_batch": float(max(batches, default=0)),
        "length_follows_batch": _correlation([size for size in batches if size], lengths),
    }


def adaserve(run: Run) -> dict[str, float]:
    report, observer = run.full_report, run.observer
    serving_s = report.tally.verify_s + sum(report.tally.draft_s.values())
    return {
        "slo_attainment": report.attainment,
        "violations": 1.0 - report.attainment,
        "goodput": report.goodput,
        "accepted_tokens": report.tokens_per_round,
        "selection_share": observer.selection_s / (serving_s + observer.selection_s),
    }


def laps_sd(run: Run) -> dict[str, float]:
    errors = run.observer.estimate_errors
    ranges = {f"rate_range/{name}": _rate_range(run, *ends) for name, ends in _WINDOWS.items()}
    return {
        "mean_latency": float(np.mean([request.latency_s for request in run.served])),
        "switch_share": float(np.mean([_switch_share(run, request) for request in run.served])),
        "estimate_error": float(np.mean(errors)) if errors else np.nan,
        **ranges,
    }


def self_scheduling(run: Run) -> dict[str, float]:
    if str(run.experiment.cell.at["workload"]) in ENDS:
        return _answered(run)
    served = run.served
    timed = {
        "ttft": [request.ttft_s for request in served],
        "tpot": [request.tpot_s for request in served],
        "latency": [request.latency_s for request in served],
    }
    percentiles = {
        f"{name}_p{share}": float(np.percentile(seconds, share))
        for name, seconds in timed.items()
        for share in (95, 99)
    }
    last = max(request.finished_s for request in served)
    first = min(request.started_s for request in served)
    mean = float(np.mean(timed["latency"]))
    return {"mean_latency": mean, "minutes_to_all": (last - first) / 60, **percentiles}


METRICS: Mapping[str, Callable[[Run], dict[str, float]]] = {
    "spin": spin,
    "specserve": specserve,
    "adaserve": adaserve,
    "laps_sd": laps_sd,
    "self_scheduling": self_scheduling,
}


def _answered(run: Run) -> dict[str, float]:
    first = min(request.at_s for request in run.experiment.requests)
    finished = np.sort(list(run.observer.returned_s.values())) - first
    minutes = {f"minutes_to_{count}": _nth(finished, count) / 60 for count in (100, 500)}
    answered = {f"answered_{m}_min": float((finished <= 60 * m).sum()) for m in (10, 20)}
    return {**minutes, **answered}


def _nth(finished: np.ndarray[tuple[int], np.dtype[np.float64]], count: int) -> float:
    return float(finished[count - 1]) if len(finished) >= count else np.nan


def _sampled(forwards: Sequence[Forward]) -> list[Forward]:
    """The last forward at every sampled time; an empty one while nothing runs."""
    ends = np.array([forward.at_s for forward in forwards])
    samples = []
    for at_s in np.arange(_SAMPLE_S, float(ends[-1]), _SAMPLE_S):
        last = forwards[max(0, int(np.searchsorted(ends, at_s, "right")) - 1)]
        runs = at_s - last.at_s < _IDLE_S
        samples.append(last if runs else Forward(float(at_s), 0, 0))
    return samples


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; 0 where one of both is constant."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return float(spearmanr(one, other).statistic)


def _switch_share(run: Run, served: FinishedRequest) -> float:
    """Share of its latency that swapping its KV out and in again would take, each time that it has
    been served for a quantum of the arm's schedule."""
    token_s = run.experiment.cluster.memory.swap_s_per_token or 0.0
    quantum_s = float(str(run.experiment.arm.schedule.options.get("quantum_s", inf)))
    switches = max(1.0, served.latency_s / quantum_s)
    grown = served.tokens * (switches + 1) / 2
    copied = switches * served.arrival.prompt_tokens + grown
    return 2 * copied * token_s / served.latency_s


def _rate_range(run: Run, first: int, last: int) -> float:
    """Range of the cumulative acceptance rate in a window, mean over requests that reach it."""
    ranges = []
    for rounds in run.observer.rounds.values():
        tokens = np.cumsum([outcome.committed for outcome in rounds])
        drafted = np.cumsum([outcome.drafted for outcome in rounds])
        accepted = np.cumsum([outcome.accepted for outcome in rounds])
        if tokens[-1] < last:
            continue
        ends = np.searchsorted(tokens, np.arange(first - 1 + _RATE_EVERY, last + 1, _RATE_EVERY))
        rates = accepted[ends] / np.maximum(1, drafted[ends])
        ranges.append(float(rates.max() - rates.min()))
    return float(np.mean(ranges)) if ranges else np.nan

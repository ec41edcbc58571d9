"""The papers' metrics, of one finished run. The YAML files define them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from benchmarks.papers.asking import PREFIX
from benchmarks.papers.setup import Experiment
from benchmarks.papers.watch import Forward, Watch
from benchmarks.simulator.report import Report, Served

_SAMPLED_EVERY_S = 5.0
_WINDOWS = {"early": (1, 50), "late": (151, 200)}
"""Of output tokens, for LAPS-SD's Fig. 3."""
_RATE_EVERY = 10
ENDS: Mapping[str, tuple[float, int]] = {"flood": (600.0, 500), "thinking_flood": (1200.0, 100)}
"""Workloads of which no metric looks further than so many seconds and so many answers."""


@dataclass(frozen=True, slots=True)
class Run:
    experiment: Experiment
    report: Report | None
    """None: ended as soon as the metrics had what they look at."""
    watch: Watch

    @property
    def whole(self) -> Report:
        assert self.report is not None, "a metric looks at a run that was ended"
        return self.report

    @property
    def served(self) -> Sequence[Served]:
        """Users' requests."""
        return [one for one in self.whole.served if not one.arrival.name.startswith(PREFIX)]


def spin(run: Run) -> dict[str, float]:
    return {"goodput": run.whole.throughput}


def specserve(run: Run) -> dict[str, float]:
    report, watch = run.whole, run.watch
    samples = _sampled(watch.forwards)
    batches = [one.requests for one in samples]
    lengths = [one.drafted / one.requests for one in samples if one.requests]
    rounds = max(1, watch.decoding_rounds)
    return {
        "speed": 1.0 / report.mean_latency_s,
        "slo_attainment": report.attainment,
        "draft_tokens": report.tally.drafted / rounds,
        "accepted_tokens": report.tally.accepted / rounds,
        "acceptance_rate": watch.acceptance_sum / max(1, watch.drafted_rounds),
        "peak_batch": float(max(batches, default=0)),
        "length_follows_batch": _correlation([size for size in batches if size], lengths),
    }


def adaserve(run: Run) -> dict[str, float]:
    report, watch = run.whole, run.watch
    serving_s = report.tally.verify_s + sum(report.tally.draft_s.values())
    return {
        "slo_attainment": report.attainment,
        "violations": 1.0 - report.attainment,
        "goodput": report.goodput,
        "accepted_tokens": report.tokens_per_round,
        "selection_share": watch.selection_s / (serving_s + watch.selection_s),
    }


def laps_sd(run: Run) -> dict[str, float]:
    errors = run.watch.estimate_errors
    ranges = {f"rate_range/{name}": _rate_range(run, *ends) for name, ends in _WINDOWS.items()}
    return {
        "mean_latency": float(np.mean([one.latency_s for one in run.served])),
        "switch_share": float(np.mean([_switch_share(run, one) for one in run.served])),
        "estimate_error": float(np.mean(errors)) if errors else np.nan,
        **ranges,
    }


def self_scheduling(run: Run) -> dict[str, float]:
    if str(run.experiment.cell.at["workload"]) in ENDS:
        return _answered(run)
    served = run.served
    timed = {
        "ttft": [one.ttft_s for one in served],
        "tpot": [one.tpot_s for one in served],
        "latency": [one.latency_s for one in served],
    }
    percentiles = {
        f"{name}_p{share}": float(np.percentile(seconds, share))
        for name, seconds in timed.items()
        for share in (95, 99)
    }
    last = max(one.finished_s for one in served)
    first = min(one.begun_s for one in served)
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
    first = min(one.at_s for one in run.experiment.requests)
    finished = np.sort(run.watch.finished_s) - first
    minutes = {f"minutes_to_{count}": _nth(finished, count) / 60 for count in (100, 500)}
    answered = {f"answered_{m}_min": float((finished <= 60 * m).sum()) for m in (10, 20)}
    return {**minutes, **answered}


def _nth(finished: np.ndarray[tuple[int], np.dtype[np.float64]], count: int) -> float:
    return float(finished[count - 1]) if len(finished) >= count else np.nan


def _sampled(forwards: Sequence[Forward]) -> list[Forward]:
    """The forward that ended last at each moment; while nothing runs, one of no requests."""
    ends = np.array([one.at_s for one in forwards])
    samples = []
    for at_s in np.arange(_SAMPLED_EVERY_S, float(ends[-1]), _SAMPLED_EVERY_S):
        last = forwards[max(0, int(np.searchsorted(ends, at_s, "right")) - 1)]
        runs = at_s - last.at_s < _IDLE_S
        samples.append(last if runs else Forward(float(at_s), 0, 0))
    return samples


_IDLE_S = 0.5
"""Behind the last forward nothing runs; no draft and no forward here takes that long."""


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; what does not vary is unrelated."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return float(spearmanr(one, other).statistic)


def _switch_share(run: Run, served: Served) -> float:
    """Out and in again, with all its tokens."""
    token_s = run.experiment.cluster.memory.swap_s_per_token or 0.0
    tokens = served.arrival.prompt_tokens + served.tokens
    return 2 * tokens * token_s / served.latency_s


def _rate_range(run: Run, first: int, last: int) -> float:
    """Of the cumulative acceptance rate, over requests that reach the window's end."""
    ranges = []
    for rounds in run.watch.rounds.values():
        tokens = np.cumsum([outcome.committed for outcome in rounds])
        drafted = np.cumsum([outcome.drafted for outcome in rounds])
        accepted = np.cumsum([outcome.accepted for outcome in rounds])
        if tokens[-1] < last:
            continue
        looks = np.searchsorted(tokens, np.arange(first - 1 + _RATE_EVERY, last + 1, _RATE_EVERY))
        rates = accepted[looks] / np.maximum(1, drafted[looks])
        ranges.append(float(rates.max() - rates.min()))
    return float(np.mean(ranges)) if ranges else np.nan

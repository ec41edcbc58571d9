"""Measures what predicted output lengths are worth: learned ones, the ranker's, true ones, none.

`python -m lab.studies.lengths [--trace FILE] [--requests N] [--json FILE]`.

Requests of a trace of lengths (column names as in benchmarks/simulator/workload.py) on a simulated
A100, at 100% and 130% of what it serves. Names: lengths/LOAD/SCHEDULE/SOURCE/mean_latency, over
FCFS, and lengths/SOURCE/tau. `ranker` stands for its measured τ-b on the built-in target's prompts,
of requests that state their length (0.67) and that do not (-0.27), without the cost of asking.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from actors.coordinator.events import Arrived, Event
from actors.coordinator.lengths import LengthLearner
from actors.coordinator.settings import Limits
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.acceptance import Acceptance, synthetic
from benchmarks.simulator.hardware import A100, LLAMA_7B, LLAMA_68M, roofline
from benchmarks.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from benchmarks.simulator.run_report import Report
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival, predict_lengths, replay_csv
from policies.estimates.output_lengths import LearnedLengths
from policies.request import RequestView

BATCH = 16
KV_TOKENS = 100_000
SCHEDULES = ("lp_sjf", "laps_sd", "default")
LOADS = (1.0, 1.3)
_STATED, _UNSTATED = 0.67, -0.27
"""τ-b of the ranker (docs/policies/ranking.md)."""
_SKIPPED_S = 1200.0
"""Of the trace, with which the learner's parameters were chosen."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--trace", type=Path, default=Path("../shared/data/azure_2023_conversation.csv")
    )
    arguments.add_argument("--requests", type=int, default=1500)
    options = arguments.parse_args()
    requests = replay_csv(options.trace, start_s=_SKIPPED_S)[: options.requests]
    capacity = _capacity(requests)
    records = [Record("lengths/capacity", capacity, "requests/s")]
    for load in LOADS:
        records += compare(_at_rate(requests, load * capacity), f"lengths/{load:.0%}")
    publish(records, options.json)


def compare(requests: Sequence[Arrival], name: str) -> list[Record]:
    sources: dict[str, Sequence[Arrival]] = {
        "true": [replace(one, predicted_tokens=float(one.output_tokens)) for one in requests],
        "ranker, lengths stated": predict_lengths(requests, _STATED, seed=0),
        "ranker, not stated": _inverted(predict_lengths(requests, -_UNSTATED, seed=0)),
    }
    fcfs = _mean_latency(requests, "fcfs")
    records = [Record(f"{name}/fcfs", fcfs, "s")]
    for schedule in SCHEDULES:
        learned = Learned()
        found = {"learned": _mean_latency(requests, schedule, learned.observe)}
        found |= {source: _mean_latency(ones, schedule) for source, ones in sources.items()}
        records += [
            Record.over(fcfs, f"{name}/{schedule}/{source}/mean_latency", latency_s, "s")
            for source, latency_s in found.items()
        ]
        records.append(Record(f"{name}/{schedule}/learned/tau", learned.tau(requests), "τ-b"))
    return records


class Learned:
    """Predictions as a replica makes them, and how good those on arrival were."""

    def __init__(self) -> None:
        self._views: dict[str, RequestView] = {}
        self._on_arrival: dict[str, float] = {}
        self._learner = LengthLearner(LearnedLengths(), self._predict)

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._views[event.view.name] = event.view
        self._learner.observe(event)

    def tau(self, requests: Sequence[Arrival]) -> float:
        true = {one.name: one.output_tokens for one in requests}
        predicted = self._on_arrival
        return float(
            kendalltau([true[name] for name in predicted], [*predicted.values()]).statistic
        )

    def _predict(self, name: str, tokens: float) -> None:
        self._views[name].predicted_len = tokens
        self._on_arrival.setdefault(name, tokens)


def _mean_latency(
    requests: Sequence[Arrival],
    schedule: str,
    observe: Callable[[Event], None] = lambda _event: None,
) -> float:
    report = _serve(requests, schedule, observe=observe)
    assert not report.refused
    return report.mean_latency_s


def _capacity(requests: Sequence[Arrival]) -> float:
    """Requests per second with all places taken."""
    report = _serve(requests[:400], "fcfs", clients=BATCH)
    last = max(one.finished_s for one in report.served)
    return len(report.served) / last


def _serve(
    requests: Sequence[Arrival],
    schedule: str,
    *,
    clients: int | None = None,
    observe: Callable[[Event], None] = lambda _event: None,
) -> Report:
    cluster = Cluster(
        roofline(LLAMA_7B, A100),
        KvMemory(KV_TOKENS),
        [DrafterSpec("ssm", "ssm", roofline(LLAMA_68M, A100), capacity=BATCH)],
        Acceptance({("", "ssm"): synthetic(0.7)}),
    )
    limits = Limits(max_batch=BATCH, max_waiting=len(requests), kv_tokens=KV_TOKENS)
    policies = named_policies("fixed", "fixed", schedule)
    return simulate(requests, cluster, policies, limits, clients=clients, observe=observe)


def _at_rate(requests: Sequence[Arrival], rate: float) -> list[Arrival]:
    first, last = requests[0].at_s, requests[-1].at_s
    scale = len(requests) / rate / (last - first)
    return [replace(one, at_s=(one.at_s - first) * scale) for one in requests]


def _inverted(requests: Sequence[Arrival]) -> list[Arrival]:
    """Predictions in the opposite order: of a negative τ-b."""
    predicted = np.array([one.predicted_tokens for one in requests])
    turned = np.sort(predicted)[::-1][predicted.argsort().argsort()]
    return [
        replace(one, predicted_tokens=tokens)
        for one, tokens in zip(requests, turned.tolist(), strict=True)
    ]


if __name__ == "__main__":
    main()

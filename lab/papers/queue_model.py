"""Computes what self-scheduling's Table 1 is by a queue alone: ten servers, all requests waiting.

`python -m lab.papers.queue_model [--datasets numinamath] [--spreads 0.7 1.1 1.6] [--draws
50] [--static] [--json FILE]`.

Lengths are log-normal with several spreads, their mean such that FCFS answers the printed number in
ten minutes. Requests are served by their rank in a batch of ten, then in the order of arrival, to
their end; ranking is free. Names: queue/DATASET/SPREAD/fcfs/minutes_to_500, its deviation between
draws, and queue/DATASET/SPREAD/TAU/{answered_10_min,minutes_to_500}; `reference`: Table 1's.

`--static`: the servers take the next ten requests when the longest of the last ten has ended, and
answers return together. Then also queue/DATASET/SPREAD/TAU/{ttft,tpot,latency_per_token}_vs_fcfs,
P95 of 200 requests over FCFS's, a mean of the draws, and their deviations.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from benchmarks.report import Record, parser, publish
from benchmarks.simulator import hardware
from lab.papers.cells import settings

Floats = NDArray[np.float64]

SERVERS, RANKED_TOGETHER, REQUESTS = 10, 10, 3000
DATASETS = ("numinamath", "taco", "sharegpt")
TAUS = (0.3, 0.45, 0.6, 1.0)
_TEN_MINUTES_S = 600.0
_COUNTED = 500
_IN_FIG_6 = 200

Serve = Callable[[Floats], Floats]
"""From seconds of work, in the order of service, to ends of requests in ascending order."""


class Queue(NamedTuple):
    """Draws of one dataset's answers."""

    dataset: str
    answered: float
    """By FCFS in ten minutes, as printed."""
    token_s: float
    """Of a request among ten, in the middle of a mean answer."""
    longest: int
    noise: Floats
    """[draws, requests], like the errors of predicted lengths."""
    errors: Floats


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--datasets", nargs="+", choices=DATASETS, default=["numinamath"])
    arguments.add_argument("--spreads", nargs="+", type=float, default=[0.7, 1.1, 1.6])
    arguments.add_argument("--draws", type=int, default=50)
    arguments.add_argument("--static", action="store_true", help="batches that end together")
    options = arguments.parse_args()
    queues = [queue(dataset, options.draws) for dataset in options.datasets]
    measure = compare_static if options.static else compare
    publish(
        [one for of in queues for spread in options.spreads for one in measure(of, spread)],
        options.json,
    )


def queue(dataset: str, draws: int) -> Queue:
    paper = settings("self_scheduling")
    machine, lengths = paper.machines["a100"], paper.datasets[dataset].lengths
    assert lengths is not None
    cost = hardware.roofline(paper.models[machine.target].shape, machine.gpu, machine.gpus)
    token_s = cost.predict(SERVERS * (lengths.prompt_mean + lengths.output_mean / 2), SERVERS)
    rng = np.random.default_rng(0)
    noise, errors = rng.standard_normal((2, draws, REQUESTS))
    answered = _printed(dataset, "answered_fcfs")
    return Queue(dataset, answered, token_s, lengths.longest, noise, errors)


def compare(of: Queue, spread: float) -> list[Record]:
    """FCFS, and service by rank at each τ-b, with lengths of this spread."""
    return _throughput(of, spread, _mean_length(of, spread, _ends), _ends)


def compare_static(of: Queue, spread: float) -> list[Record]:
    """The same of static batches, and Fig. 6's metrics by rank over FCFS's."""
    mean = _mean_length(of, spread, _static_ends)
    lengths = _lengths(of, mean, spread)
    records = _throughput(of, spread, mean, _static_ends)
    for tau in TAUS:
        width = _error_width(lengths[0], of.errors[0], tau)
        ratios = np.array(
            [
                _at_p95(one, by_rank(one * np.exp(width * error))) / _at_p95(one)
                for one, error in zip(lengths[:, :_IN_FIG_6], of.errors[:, :_IN_FIG_6], strict=True)
            ]
        )
        for name, of_draws in zip(("ttft", "tpot", "latency_per_token"), ratios.T, strict=True):
            prefix = f"queue/{of.dataset}/{spread}/{tau}/{name}_vs_fcfs"
            records.append(Record(prefix, float(of_draws.mean()), "x"))
            records.append(Record(f"{prefix}_deviation", float(of_draws.std()), "x"))
    return records


def _at_p95(lengths: Floats, order: NDArray[np.int64] | slice = slice(None)) -> Floats:
    """TTFT, TPOT and latency for each token at P95, in tokens' times, of static batches in this
    order."""
    served = lengths[order]
    ends = _static_ends(served)
    starts = ends - np.repeat(served.reshape(-1, SERVERS).max(axis=1), SERVERS)
    return np.percentile([starts, (ends - starts) / served, ends / served], 95, axis=1)


def _throughput(of: Queue, spread: float, mean: float, serve: Serve) -> list[Record]:
    lengths = _lengths(of, mean, spread)
    prefix = f"queue/{of.dataset}/{spread}"
    minutes = np.array([_nth_minutes(serve(one * of.token_s)) for one in lengths])
    to_500, deviation = float(minutes.mean()), float(minutes.std())
    printed = _printed(of.dataset, "minutes_fcfs")
    records = [
        Record(f"{prefix}/mean_length", mean, "tokens"),
        Record.over(printed, f"{prefix}/fcfs/minutes_to_500", to_500, "min"),
        Record(f"{prefix}/fcfs/minutes_to_500_deviation", deviation, "min"),
    ]
    for tau in TAUS:
        width = _error_width(lengths[0], of.errors[0], tau)
        ends = [
            serve(one[by_rank(one * np.exp(width * error))] * of.token_s)
            for one, error in zip(lengths, of.errors, strict=True)
        ]
        for name, row, read in (
            ("answered_10_min", "answered_length_only", _answered),
            ("minutes_to_500", "minutes_length_only", _nth_minutes),
        ):
            value = float(np.mean([read(one) for one in ends]))
            unit = "requests" if read is _answered else "min"
            printed = _printed(of.dataset, row)
            records.append(Record.over(printed, f"{prefix}/{tau}/{name}", value, unit))
    return records


def by_rank(predicted: Floats) -> NDArray[np.int64]:
    """The order of service: ranks of batches of ten, compared as they are; then arrival."""
    batches = predicted.reshape(-1, RANKED_TOGETHER)
    ranks = batches.argsort(axis=1).argsort(axis=1).ravel()
    return np.argsort(ranks, kind="stable")


def _ends(seconds: Floats) -> Floats:
    """When requests that are started in this order end, until ten minutes and 500 answers have
    passed; in ascending order."""
    busy_until = [0.0] * SERVERS
    ends: list[float] = []
    for took_s in seconds:
        # Requests that start after this time also end after it.
        if busy_until[0] > _TEN_MINUTES_S and len(ends) >= _COUNTED + SERVERS:
            break
        ends.append(busy_until[0] + took_s)
        heapq.heapreplace(busy_until, ends[-1])
    return np.sort(ends)


def _static_ends(seconds: Floats) -> Floats:
    """When requests that are served ten at a time end, each with the longest of its batch."""
    return np.repeat(np.cumsum(seconds.reshape(-1, SERVERS).max(axis=1)), SERVERS)


def _answered(ends: Floats) -> float:
    return float(np.searchsorted(ends, _TEN_MINUTES_S, "right"))


def _nth_minutes(ends: Floats) -> float:
    return float(ends[_COUNTED - 1]) / 60


def _lengths(of: Queue, mean: float, spread: float) -> Floats:
    drawn = np.exp(np.log(mean) - spread**2 / 2 + spread * of.noise)
    return np.clip(np.rint(drawn), 1, of.longest)


def _mean_length(of: Queue, spread: float, serve: Serve) -> float:
    """Before lengths are cut to the longest one: so that FCFS answers what is printed."""

    def above(mean: float) -> bool:
        lengths = _lengths(of, mean, spread)
        answered = [_answered(serve(one * of.token_s)) for one in lengths]
        return float(np.mean(answered)) > of.answered

    return _root(above, 50.0, 20_000.0)


def _error_width(lengths: Floats, error: Floats, tau: float) -> float:
    """Of log-normal errors that leave this τ-b."""
    if tau == 1.0:
        return 0.0

    def above(width: float) -> bool:
        return float(kendalltau(lengths, lengths * np.exp(width * error)).statistic) > tau

    return _root(above, 0.0, 64.0)


def _root(above: Callable[[float], bool], low: float, high: float) -> float:
    """By bisection, where `above` holds at `low` and not at `high`."""
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


def _printed(dataset: str, row: str) -> float:
    figure = settings("self_scheduling").figures["table1"]
    number = next(one.printed for one in figure.rows if one.row == f"{dataset}/{row}")
    assert number is not None
    return number


if __name__ == "__main__":
    main()

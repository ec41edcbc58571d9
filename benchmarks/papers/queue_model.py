"""Computes what self-scheduling's Table 1 is by a queue alone: ten servers, all requests waiting.

`python -m benchmarks.papers.queue_model [--datasets numinamath] [--spreads 0.7 1.1 1.6] [--draws
50] [--json FILE]`.

Lengths are log-normal with several spreads, their mean such that FCFS answers the printed number in
ten minutes. Requests are served by their rank in a batch of ten, then in the order of arrival, to
their end; ranking is free. Names: queue/DATASET/SPREAD/fcfs/minutes_to_500, its deviation between
draws, and queue/DATASET/SPREAD/TAU/{answered_10_min,minutes_to_500}; `reference`: Table 1's.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from benchmarks.papers.cells import settings
from benchmarks.report import Record, parser, publish
from benchmarks.simulator import hardware

Floats = NDArray[np.float64]

SERVERS, RANKED_TOGETHER, REQUESTS = 10, 10, 3000
DATASETS = ("numinamath", "taco", "sharegpt")
TAUS = (0.3, 0.45, 0.6, 1.0)
_TEN_MINUTES_S = 600.0
_COUNTED = 500


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
    options = arguments.parse_args()
    queues = [queue(dataset, options.draws) for dataset in options.datasets]
    publish(
        [one for of in queues for spread in options.spreads for one in compare(of, spread)],
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
    mean = _mean_length(of, spread)
    lengths = _lengths(of, mean, spread)
    prefix = f"queue/{of.dataset}/{spread}"
    minutes = np.array([_nth_minutes(_ends(one * of.token_s)) for one in lengths])
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
            _ends(one[by_rank(one * np.exp(width * error))] * of.token_s)
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


def _answered(ends: Floats) -> float:
    return float(np.searchsorted(ends, _TEN_MINUTES_S, "right"))


def _nth_minutes(ends: Floats) -> float:
    return float(ends[_COUNTED - 1]) / 60


def _lengths(of: Queue, mean: float, spread: float) -> Floats:
    drawn = np.exp(np.log(mean) - spread**2 / 2 + spread * of.noise)
    return np.clip(np.rint(drawn), 1, of.longest)


def _mean_length(of: Queue, spread: float) -> float:
    """Before lengths are cut to the longest one: so that FCFS answers what is printed."""

    def above(mean: float) -> bool:
        lengths = _lengths(of, mean, spread)
        answered = [_answered(_ends(one * of.token_s)) for one in lengths]
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

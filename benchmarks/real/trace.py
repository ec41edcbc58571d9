"""Rounds in an open loop: requests arrive as in a trace, whatever is still being answered."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.real.contest import (
    Contender,
    MakeServer,
    PairedTurn,
    Results,
    limited,
    new_requests,
    run_round,
    served_by,
)
from benchmarks.real.results import slowest_domain
from benchmarks.real.spindle import PeerRequest, TurnResult
from benchmarks.report import Record
from benchmarks.simulator.workload import Arrival, replay_csv

CLIENTS = 16
"""Clients of the closed loop in which plain vLLM says how fast it serves a round's requests."""


def windows_of(trace: Path, count: int, requests: int) -> Sequence[Sequence[Arrival]]:
    """The first windows of a trace, each with one arrival more than requests: it says when the
    window ends."""
    try:
        arrivals = replay_csv(trace)
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"--trace: {trace} cannot be read: {error!r}") from error
    if len(arrivals) <= count * requests:
        few = f"{len(arrivals)} arrivals are too few for {count} windows of {requests} requests"
        raise SystemExit(f"--trace: {few}")
    windows = [arrivals[n * requests : (n + 1) * requests + 1] for n in range(count)]
    if any(window[-1].at_s <= window[0].at_s for window in windows):
        raise SystemExit(f"--trace: {requests} requests or more arrive at once")
    return windows


def trace_turns(
    plain: Contender,
    others: Mapping[str, MakeServer],
    stream: Iterator[PeerRequest],
    windows: Sequence[Sequence[Arrival]],
    loads: Sequence[int],
) -> Results:
    """All in turns, loaded together, each round with the next window and new requests; the loads,
    in percent, alternate."""
    results: dict[tuple[str, int], list[PairedTurn]] = {}
    requests = len(windows[0]) - 1
    with ExitStack() as loaded:
        contenders = [
            loaded.enter_context(closing(Contender(name, make))) for name, make in others.items()
        ]
        warm_up = new_requests(plain, stream, CLIENTS, lambda _: requests)
        for contender in contenders:
            contender.serve(warm_up, CLIENTS)
        for number, window in enumerate(windows):
            load = loads[number % len(loads)]
            paced = arriving(plain, list(islice(stream, requests)), window, load / 100)
            # At each load another contender is the first in each round.
            order = number // len(loads) + number % len(loads)
            for name, turn in run_round(plain, contenders, paced, len(paced), order).items():
                results.setdefault((name, load), []).append(turn)
                print(f"{name} at {load}%: {_ratio(turn):.2f} of plain's mean latency", flush=True)
    return results


def arriving(
    plain: Contender, requests: Sequence[PeerRequest], window: Sequence[Arrival], load: float
) -> list[PeerRequest]:
    """The requests at the window's times and at most as long as its outputs; on average they arrive
    at `load` times the rate at which plain vLLM serves them in a closed loop."""
    capped = [
        replace(request, max_tokens=min(request.max_tokens, arrival.output_tokens))
        for request, arrival in zip(requests, window, strict=False)
    ]
    served = served_by(plain, capped, CLIENTS)
    first_s, end_s = window[0].at_s, window[len(requests)].at_s
    scale = served.seconds / load / (end_s - first_s)
    return [
        replace(request, arrives_s=scale * (arrival.at_s - first_s))
        for request, arrival in zip(limited(capped, served), window, strict=False)
    ]


def latency_records(results: Results, prefix: str) -> list[Record]:
    """Latencies of all rounds together, and the mean's ratio in each round."""
    records = []
    for (name, load), turns in results.items():
        ours, plain = [turn.ours for turn in turns], [turn.plain for turn in turns]
        own = f"{prefix}/{name}/{load}%"
        for statistic, seconds in _STATISTICS.items():
            records.append(Record.over(seconds(plain), f"{own}/{statistic}", seconds(ours), "s"))
        for number, turn in enumerate(turns, start=1):
            records.append(Record(f"{own}/latency_mean/round{number}", _ratio(turn), "x plain"))
        forwards = sum(turn.forwards for turn in ours)
        per_forward = sum(turn.tokens for turn in ours) / forwards
        records += [
            Record(f"{own}/slowest_domain", slowest_domain(turns), "x plain"),
            Record(f"{own}/tokens_per_forward", per_forward, "tokens"),
        ]
    return records


def _ratio(turn: PairedTurn) -> float:
    return _mean_s([turn.ours]) / _mean_s([turn.plain])


def _mean_s(turns: Sequence[TurnResult]) -> float:
    return float(np.mean(_latencies_s(turns)))


def _p95_s(turns: Sequence[TurnResult]) -> float:
    return float(np.percentile(_latencies_s(turns), 95))


def _p95_of_a_token_s(turns: Sequence[TurnResult]) -> float:
    lengths = np.concatenate([turn.lengths for turn in turns])
    return float(np.percentile(_latencies_s(turns) / lengths, 95))


def _latencies_s(turns: Sequence[TurnResult]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.concatenate([turn.latencies_s for turn in turns])


_STATISTICS = {
    "latency_mean": _mean_s,
    "latency_p95": _p95_s,
    "latency_per_token_p95": _p95_of_a_token_s,
}

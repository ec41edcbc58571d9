"""Replayed rounds: what each arm gains on answers whose drafts are known."""

import random

import pytest

from benchmarks.real.rounds import Paces, compare
from benchmarks.real.traces import Trace
from policies.cost import ForwardCost

PACES = Paces(ForwardCost(0.0, 1e-3, 40e-3), ForwardCost(0.0, 1e-4, 5e-4), (5e-4, 5e-5))


def answer(number: int, *, copied: bool) -> Trace:
    """After a prompt that it repeats, or with a head that always knows the next two tokens."""
    draw = random.Random(number)
    prompt = [draw.randrange(100, 30_000) for _ in range(60)]
    output = prompt[10:] if copied else [draw.randrange(30_000, 90_000) for _ in range(50)]
    wrong, known = [7, 7], [0.95, 0.95]
    chains = [
        (wrong, [0.02, 0.02]) if copied else (output[n : n + 2], known[: len(output) - n])
        for n in range(len(output))
    ]
    return Trace("copied" if copied else "new", tuple(prompt), output, chains)


def test_both_together_gain_what_each_gains_where_the_other_does_not() -> None:
    traces = [answer(number, copied=number % 2 == 0) for number in range(24)]
    records = {record.name: record for record in compare(traces, PACES, [1])}
    lookups, head, both = (
        records[f"rounds/1/{arm}/tokens_per_forward"].value for arm in ("lookups", "head", "both")
    )
    assert records["rounds/1/plain/tokens_per_forward"].value == 1.0
    best = records["rounds/hindsight/tokens_per_forward"]
    assert best.reference == pytest.approx(lookups, rel=0.1)
    assert both > 1.3 * max(lookups, head)
    assert records["rounds/1/share_of_hindsight"].value > 0.8
    assert (records["rounds/1/both/over_best"].ratio or 0.0) > 1.2

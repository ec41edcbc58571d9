"""The planner's choice against brute force: exact where it claims so, the gap where it is not."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.flat_trees import flatten
from policies.protocols import Mask
from policies.speculation.forest import Floats, forest_of
from policies.speculation.planner.best_prefix import Items, Requests, best_prefix
from policies.speculation.planner.select import _best_nodes
from policies.speculation.slo import TimeCaps
from policies.tree import DraftTree
from tests.policies.speculation.rounds import SEEDED, all_selections, by_tree, gain, is_whole, trees

FORESTS = st.lists(trees(nodes=4), min_size=1, max_size=3)


def speed(gains: Floats, seconds: float) -> float:
    return float(len(gains) + gains.sum()) / seconds


def no_caps(requests: int) -> TimeCaps:
    return TimeCaps(np.zeros(requests), np.full(requests, np.inf))


def requests(
    count: int, slo: TimeCaps | None = None, need: Floats | None = None, token_s: float = 0.0
) -> Requests:
    zeros = np.zeros(count)
    return Requests(
        context=zeros,
        need=zeros if need is None else need,
        token_s=np.full(count, token_s),
        slo=slo or no_caps(count),
        expected=zeros,
        min_gain=zeros,
        first_token_limit_s=inf,
    )


def chosen(
    drafted: Sequence[DraftTree], seconds: Floats, slo: TimeCaps | None = None
) -> tuple[list[Mask], Floats]:
    """The planner's own masks, and what each request gains by them."""
    forest = forest_of(flatten(drafted))
    nodes, gains = _best_nodes(forest, requests(len(drafted), slo), seconds)
    masks = by_tree(forest.mask(nodes), forest.starts)
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))
    gained = np.bincount(forest.owner[nodes], forest.path[nodes], len(drafted))
    assert gains == pytest.approx(gained)
    return masks, gains


def caps_at(caps: TimeCaps, gain: Floats) -> Floats:
    return caps.slope * (1.0 + gain) + caps.offset


def brute_force(
    drafted: Sequence[DraftTree],
    cost: Callable[[list[int]], float],
    most: int,
    allowed: Callable[[Floats, float], bool] = lambda gains, seconds: True,
) -> float:
    """The best speed of all whole selections; `cost` of the numbers of nodes by tree."""
    best = -np.inf
    for selection in all_selections(drafted):
        counts = [int(mask.sum()) for mask in selection]
        if sum(counts) <= most:
            gains = np.array([gain(t, m) for t, m in zip(drafted, selection, strict=True)])
            seconds = cost(counts)
            if allowed(gains, seconds):
                best = max(best, speed(gains, seconds))
    return best


# Whatever the time of k nodes is: a line, a knee, steps (a CUDA graph per padded batch).
CURVES: dict[str, Callable[[int], float]] = {
    "linear": lambda nodes: 1.0 + 0.15 * nodes,
    "knee": lambda nodes: 1.0 + 0.02 * nodes + 0.4 * max(0, nodes - 4),
    "steps": lambda nodes: 1.0 + 0.5 * (nodes // 4),
    "flat": lambda nodes: 1.0,
}


@pytest.mark.parametrize("curve", CURVES)
@SEEDED
@given(drafted=FORESTS, most=st.integers(0, 12))
def test_is_brute_force_where_every_node_costs_the_same(
    curve: str, drafted: list[DraftTree], most: int
) -> None:
    """Exact, also under a binding budget and for stepped costs: T depends on the number only."""
    most = min(most, sum(len(tree) for tree in drafted))
    seconds = np.array([CURVES[curve](nodes) for nodes in range(most + 1)])
    masks, gains = chosen(drafted, seconds)
    took = CURVES[curve](sum(int(mask.sum()) for mask in masks))
    best = brute_force(drafted, lambda counts: CURVES[curve](sum(counts)), most)
    assert speed(gains, took) == pytest.approx(best, rel=1e-5)


@SEEDED
@given(FORESTS, st.lists(st.tuples(st.floats(0.1, 2), st.floats(-1, 1)), min_size=3, max_size=3))
def test_the_caps_of_all_requests_hold_where_some_prefix_keeps_them(
    drafted: list[DraftTree], lines: list[tuple[float, float]]
) -> None:
    slope, offset = np.array(lines[: len(drafted)]).T
    caps = TimeCaps(slope, offset)
    nodes = sum(map(len, drafted))
    seconds = np.array([0.2 + 0.1 * kept for kept in range(nodes + 1)])
    masks, gains = chosen(drafted, seconds, caps)
    took = seconds[sum(int(mask.sum()) for mask in masks)]
    if seconds[0] <= caps_at(caps, np.zeros(len(drafted))).min():
        assert took <= caps_at(caps, gains).min() + 1e-9


def test_needs_before_slos_before_the_speed() -> None:
    """One request may take 2.05 at most, which no longer draft of the other keeps."""
    seconds = np.array([1.0, 1.5, 2.0, 2.5])
    slo = TimeCaps(np.zeros(2), np.array([2.05, np.inf]))
    owner, gain = np.zeros(3, np.int64), np.array([2.9, 2.81, 2.729])

    def kept(needed: int, caps: TimeCaps | None) -> int:
        items = Items(owner, gain, needed)
        asked = requests(2, slo=caps, need=np.array([float(needed), 0.0]), token_s=10.0)
        return best_prefix(items, asked, seconds)

    assert kept(0, None) == 3
    assert kept(0, slo) == 2
    assert kept(3, slo) == 3
    # An SLO that is missed anyway: as little as possible.
    assert kept(0, TimeCaps(np.zeros(2), np.array([np.inf, 0.5]))) == 0


@pytest.mark.parametrize(("needy", "taken"), [(1, 1), (3, 3), (5, 0)])
def test_needs_take_nodes_that_save_more_time_than_they_cost(needy: int, taken: int) -> None:
    """A token is worth 100 ms; an item of 0.2 tokens that costs every one of them 5 ms must earn
    more."""
    count = np.arange(needy + 1)
    items = Items(np.arange(needy), np.full(needy, 0.2), needy)
    asked = requests(needy, need=np.full(needy, 0.2), token_s=0.1)
    seconds = 0.02 + 5e-3 * count
    assert best_prefix(items, asked, seconds) == taken

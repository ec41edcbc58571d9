"""The planner's choice against brute force: exact where it claims so, the gap where it is not."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.flat_trees import flatten
from policies.protocols import Mask
from policies.speculation.forest import Floats, forest_of
from policies.speculation.planner.best_prefix import Items, Requests, best_prefix, no_caps
from policies.speculation.planner.select import _best_nodes
from policies.speculation.slo import TimeCaps
from policies.tree import DraftTree
from tests.policies.speculation.rounds import (
    SEEDED,
    all_selections,
    by_tree,
    gain,
    is_whole,
    random_trees,
    trees,
)

FORESTS = st.lists(trees(nodes=4), min_size=1, max_size=3)
FAIR, THROUGHPUT = True, False
KINDS = [FAIR, THROUGHPUT]

WEIGHTS = st.lists(st.floats(1, 10), min_size=3, max_size=3)


def value(fair: bool, gains: Floats, seconds: float, weight: Floats | None = None) -> float:
    """The logarithm of the mean speed, by definition."""
    speeds = (1.0 + gains) / seconds
    if fair:
        return float(np.average(np.log(speeds), weights=weight))
    return float(np.log(np.mean(speeds)))


def requests(
    count: int,
    no_harm: TimeCaps | None = None,
    weight: Floats | None = None,
    slo: TimeCaps | None = None,
    need: Floats | None = None,
    token_s: float = 0.0,
) -> Requests:
    zeros = np.zeros(count)
    return Requests(
        context=zeros,
        weight=np.ones(count) if weight is None else weight,
        need=zeros if need is None else need,
        token_s=np.full(count, token_s),
        slo=slo or no_caps(count),
        no_harm=no_harm or no_caps(count),
        expected=zeros,
        min_gain=zeros,
    )


def chosen(
    drafted: Sequence[DraftTree],
    fair: bool,
    seconds: Floats,
    no_harm: TimeCaps | None = None,
    weight: Floats | None = None,
) -> tuple[list[Mask], Floats]:
    """The planner's own masks, and what each request gains by them."""
    forest = forest_of(flatten(drafted))
    nodes, gains = _best_nodes(fair, forest, requests(len(drafted), no_harm, weight), seconds)
    masks = by_tree(forest.mask(nodes), forest.starts)
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))
    gained = np.bincount(forest.owner[nodes], forest.path[nodes], len(drafted))
    assert gains == pytest.approx(gained)
    return masks, gains


def caps_at(caps: TimeCaps, gain: Floats) -> Floats:
    return caps.slope * (1.0 + gain) + caps.offset


def loss(got: float, best: float) -> float:
    """Of the mean speed of the two requests, their geometric one for one."""
    return 1.0 - float(np.exp(got - best))


def report(what: str, gaps: Sequence[float]) -> None:
    exact = np.mean(np.array(gaps) < 1e-6)
    print(f"{what}: mean {np.mean(gaps):.4f}, worst {np.max(gaps):.4f}, exact {exact:.2f}")


def brute_force(
    drafted: Sequence[DraftTree],
    fair: bool,
    cost: Callable[[list[int]], float],
    most: int,
    allowed: Callable[[Floats, float], bool] = lambda gains, seconds: True,
    weight: Floats | None = None,
) -> float:
    """The best objective of all whole selections; `cost` of the numbers of nodes by tree."""
    best = -np.inf
    for selection in all_selections(drafted):
        counts = [int(mask.sum()) for mask in selection]
        if sum(counts) <= most:
            gains = np.array([gain(t, m) for t, m in zip(drafted, selection, strict=True)])
            seconds = cost(counts)
            if allowed(gains, seconds):
                best = max(best, value(fair, gains, seconds, weight))
    return best


# Whatever the time of k nodes is: a line, a knee, steps (a CUDA graph per padded batch).
CURVES: dict[str, Callable[[int], float]] = {
    "linear": lambda nodes: 1.0 + 0.15 * nodes,
    "knee": lambda nodes: 1.0 + 0.02 * nodes + 0.4 * max(0, nodes - 4),
    "steps": lambda nodes: 1.0 + 0.5 * (nodes // 4),
    "flat": lambda nodes: 1.0,
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("fair", KINDS)
@SEEDED
@given(drafted=FORESTS, most=st.integers(0, 12), weights=WEIGHTS)
def test_is_brute_force_where_every_node_costs_the_same(
    curve: str, fair: bool, drafted: list[DraftTree], most: int, weights: list[float]
) -> None:
    """Exact, also under a binding budget and for stepped costs: T depends on the number only. And
    whatever requests weigh."""
    weight = np.array(weights[: len(drafted)]) if fair else np.ones(len(drafted))
    most = min(most, sum(len(tree) for tree in drafted))
    seconds = np.array([CURVES[curve](nodes) for nodes in range(most + 1)])
    masks, gains = chosen(drafted, fair, seconds, weight=weight)
    took = CURVES[curve](sum(int(mask.sum()) for mask in masks))
    best = brute_force(
        drafted, fair, lambda counts: CURVES[curve](sum(counts)), most, weight=weight
    )
    assert value(fair, gains, took, weight) == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_never_stops_at_the_first_loss() -> None:
    """A step upwards in cost that only several nodes together repay."""
    drafted = [DraftTree.chain([1, 2, 3, 4], [0.95] * 4)]
    seconds = np.array([1.0, 2.1, 2.1, 2.1, 2.1])
    [mask], _ = chosen(drafted, THROUGHPUT, seconds)
    assert mask.all()


@SEEDED
@given(FORESTS, st.lists(st.tuples(st.floats(0.1, 2), st.floats(-1, 1)), min_size=3, max_size=3))
def test_the_caps_of_all_requests_hold_where_some_prefix_keeps_them(
    drafted: list[DraftTree], lines: list[tuple[float, float]]
) -> None:
    slope, offset = np.array(lines[: len(drafted)]).T
    caps = TimeCaps(slope, offset)
    nodes = sum(map(len, drafted))
    seconds = np.array([0.2 + 0.1 * kept for kept in range(nodes + 1)])
    masks, gains = chosen(drafted, FAIR, seconds, caps)
    took = seconds[sum(int(mask.sum()) for mask in masks)]
    if seconds[0] <= caps_at(caps, np.zeros(len(drafted))).min():
        assert took <= caps_at(caps, gains).min() + 1e-9


def test_needs_before_slos_before_no_harm_before_the_objective() -> None:
    """One request may take 2.05 at most, the other is harmed beyond 1.05: of the prefixes that the
    first one allows, the one that harms the other least; a cap that nothing keeps binds as well."""
    seconds = np.array([1.0, 1.5, 2.0, 2.5])
    slo = TimeCaps(np.zeros(2), np.array([2.05, np.inf]))
    no_harm = TimeCaps(np.array([0.0, 1.0]), np.array([np.inf, 0.05]))
    owner, gain = np.zeros(3, np.int64), np.array([0.9, 0.81, 0.729])

    def kept(needed: int, one: TimeCaps | None, other: TimeCaps | None) -> int:
        items = Items(owner, gain, np.full(3, 10.0), needed)  # as many as possible
        need = np.array([float(needed), 0.0])
        asked = requests(2, other, slo=one, need=need, token_s=10.0)
        return best_prefix(THROUGHPUT, items, asked, seconds, seconds)

    assert kept(0, None, None) == 3
    assert kept(0, slo, None) == 2
    assert kept(0, slo, no_harm) == 0
    assert kept(1, slo, no_harm) == 1
    assert kept(3, slo, no_harm) == 3
    # The second request's SLO is broken anyway; the harm to the first one still counts.
    lost = TimeCaps(np.zeros(2), np.array([np.inf, 0.5]))
    assert kept(0, lost, no_harm) == 0
    # A debt that no prefix settles: the first request's own tokens pay most of it, within the SLO.
    debt = TimeCaps(np.array([1.0, 0.0]), np.array([-0.8, np.inf]))
    assert kept(0, TimeCaps(np.zeros(2), np.array([1.6, np.inf])), debt) == 1


@pytest.mark.parametrize(("needy", "taken"), [(1, 1), (3, 3), (5, 0)])
def test_needs_take_nodes_that_save_more_time_than_they_cost(needy: int, taken: int) -> None:
    """A token is worth 100 ms; an item of 0.2 tokens that costs every one of them 5 ms must earn
    more. The objective alone would take none."""
    count = np.arange(needy + 1)
    items = Items(np.arange(needy), np.full(needy, 0.2), np.zeros(needy), needy)
    asked = requests(needy, need=np.full(needy, 0.2), token_s=0.1)
    seconds = 0.02 + 5e-3 * count
    assert best_prefix(FAIR, items, asked, seconds, seconds) == taken


@pytest.mark.parametrize(("ratio", "mean", "worst"), [(2, 0.02, 0.10), (4, 0.05, 0.20)])
@pytest.mark.parametrize("fair", KINDS)
def test_gap_where_nodes_truly_cost_differently(
    fair: bool, ratio: int, mean: float, worst: float
) -> None:
    """The cost model counts tokens; attention makes a long request's nodes dearer. Planned with
    the mean cost where one request's nodes cost `ratio` times the other's."""
    rng = np.random.default_rng(0)
    each = np.array([1.0, ratio]) * 0.2 / (1 + ratio)
    planned = np.array([1.0 + each.mean() * nodes for nodes in range(11)])
    gaps = []
    for _ in range(60):
        drafted = random_trees(rng, 2, 5)
        masks, gains = chosen(drafted, fair, planned)
        counts = [int(mask.sum()) for mask in masks]
        got = value(fair, gains, 1.0 + float(each @ counts))
        best = brute_force(drafted, fair, lambda n: 1.0 + float(each @ np.array(n)), 10)
        gaps.append(loss(got, best))
    report(f"fair {fair}, {ratio}x", gaps)
    assert np.mean(gaps) < mean
    assert np.max(gaps) < worst


def test_gap_under_time_caps() -> None:
    """With caps the best set need not be a prefix of the order."""
    rng = np.random.default_rng(1)
    seconds = np.array([1.0 + 0.08 * nodes for nodes in range(11)])
    caps = TimeCaps(np.full(2, 1.0 / 0.97), np.zeros(2))
    gaps = []
    for _ in range(60):
        drafted = random_trees(rng, 2, 5)
        masks, gains = chosen(drafted, FAIR, seconds, caps)
        took = float(seconds[sum(int(mask.sum()) for mask in masks)])
        assert took <= float(caps_at(caps, gains).min())
        best = brute_force(
            drafted,
            FAIR,
            lambda counts: float(seconds[sum(counts)]),
            10,
            lambda gained, time: time <= float(caps_at(caps, gained).min()),
        )
        gaps.append(loss(value(FAIR, gains, took), best))
    report("caps", gaps)
    assert np.mean(gaps) < 0.02
    assert np.max(gaps) < 0.2

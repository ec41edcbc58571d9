"""The planner's choice against brute force: exact where it claims so, the gap where it is not."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.flat_trees import flatten
from policies.protocols import Mask
from policies.speculation.forest import Floats, forest_of
from policies.speculation.planner.best_prefix import (
    Gains,
    TimeCaps,
    best_prefix,
    caps_at,
    freely,
    needs_first,
    no_caps,
    objective_of,
    tightest_cap,
    urgent_nodes,
)
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
FAIR, THROUGHPUT = 0.0, 1.0
POWERS = [FAIR, 0.5, THROUGHPUT]

WEIGHTS = st.lists(st.floats(1, 10), min_size=3, max_size=3)


def value(power: float, gains: Floats, seconds: float, weight: Floats | None = None) -> float:
    """The logarithm of the power mean of speeds, by definition."""
    speeds = (1.0 + gains) / seconds
    weight = np.ones(len(gains)) if weight is None else weight
    if power == 0.0:
        return float(np.average(np.log(speeds), weights=weight))
    return float(np.log(np.average(speeds**power, weights=weight)) / power)


def chosen(
    drafted: Sequence[DraftTree],
    power: float,
    seconds: Floats,
    no_harm: TimeCaps | None = None,
    weight: Floats | None = None,
) -> tuple[list[Mask], Floats]:
    """The planner's own masks, and what each request gains by them."""
    forest, free = forest_of(flatten(drafted)), no_caps(len(drafted))
    weight = np.ones(len(drafted)) if weight is None else weight
    most = len(seconds) - 1
    gains, choice = freely(forest, power, weight, most, seconds, no_harm or free)
    # Where nobody needs anything, the long way comes to the same.
    none = np.zeros(len(drafted))
    ranking = needs_first(gains, none.astype(np.int64), none, most)
    objective = objective_of(ranking, power, seconds)
    same = best_prefix(ranking, objective, seconds, free, no_harm or free)
    assert choice.nodes.tolist() == same.nodes.tolist()
    assert choice.gain.tolist() == same.gain.tolist()
    masks = by_tree(forest.mask(choice.nodes), forest.starts)
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))
    kept = choice.nodes
    gained = np.bincount(forest.owner[kept], forest.path[kept], len(drafted))
    assert choice.gain == pytest.approx(gained)
    assert choice.seconds == seconds[len(choice.nodes)]
    return masks, choice.gain


def gains_of(drafted: Sequence[DraftTree], power: float) -> Gains:
    forest, requests = forest_of(flatten(drafted)), len(drafted)
    seconds = np.ones(forest.nodes + 1)
    free = no_caps(requests)
    return freely(forest, power, np.ones(requests), forest.nodes, seconds, free)[0]


def loss(got: float, best: float) -> float:
    """Of the mean speed of the two requests, their geometric one for one."""
    return 1.0 - float(np.exp(got - best))


def report(what: str, gaps: Sequence[float]) -> None:
    exact = np.mean(np.array(gaps) < 1e-6)
    print(f"{what}: mean {np.mean(gaps):.4f}, worst {np.max(gaps):.4f}, exact {exact:.2f}")


def brute_force(
    drafted: Sequence[DraftTree],
    power: float,
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
                best = max(best, value(power, gains, seconds, weight))
    return best


# Whatever the time of k nodes is: a line, a knee, steps (a CUDA graph per padded batch).
CURVES: dict[str, Callable[[int], float]] = {
    "linear": lambda nodes: 1.0 + 0.15 * nodes,
    "knee": lambda nodes: 1.0 + 0.02 * nodes + 0.4 * max(0, nodes - 4),
    "steps": lambda nodes: 1.0 + 0.5 * (nodes // 4),
    "flat": lambda nodes: 1.0,
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("power", POWERS)
@SEEDED
@given(drafted=FORESTS, most=st.integers(0, 12), weights=WEIGHTS)
def test_is_brute_force_where_every_node_costs_the_same(
    curve: str, power: float, drafted: list[DraftTree], most: int, weights: list[float]
) -> None:
    """Exact, also under a binding budget and for stepped costs: T depends on the number only. And
    whatever requests weigh."""
    weight = np.array(weights[: len(drafted)])
    most = min(most, sum(len(tree) for tree in drafted))
    seconds = np.array([CURVES[curve](nodes) for nodes in range(most + 1)])
    masks, gains = chosen(drafted, power, seconds, weight=weight)
    took = CURVES[curve](sum(int(mask.sum()) for mask in masks))
    best = brute_force(
        drafted, power, lambda counts: CURVES[curve](sum(counts)), most, weight=weight
    )
    assert value(power, gains, took, weight) == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_never_stops_at_the_first_loss() -> None:
    """A step upwards in cost that only several nodes together repay."""
    drafted = [DraftTree.chain([1, 2, 3, 4], [0.95] * 4)]
    seconds = np.array([1.0, 2.1, 2.1, 2.1, 2.1])
    [mask], _ = chosen(drafted, THROUGHPUT, seconds)
    assert mask.all()


@SEEDED
@given(FORESTS, st.lists(st.tuples(st.floats(0.1, 2), st.floats(-1, 1)), min_size=3, max_size=3))
def test_time_caps_hold_at_every_prefix(
    drafted: list[DraftTree], lines: list[tuple[float, float]]
) -> None:
    slope, offset = np.array(lines[: len(drafted)]).T
    caps = TimeCaps(slope, offset)
    none = np.zeros(len(drafted))
    ranking = needs_first(gains_of(drafted, FAIR), none.astype(np.int64), none, 100)
    along = tightest_cap(ranking, caps)
    for length in range(len(ranking.nodes) + 1):
        gains = np.bincount(ranking.owner[:length], ranking.path[:length], len(drafted))
        assert along[length] == pytest.approx(float(np.min(slope * (1 + gains) + offset)))


def test_slos_before_no_harm_before_the_objective() -> None:
    """One request may take 2.05 at most, the other is harmed beyond 1.05: of the prefixes that the
    first one allows, the one that harms the other least; a cap that nothing keeps binds as well."""
    drafted = [DraftTree.chain([1, 2, 3], [0.9] * 3), DraftTree.empty()]
    seconds = np.array([1.0, 1.5, 2.0, 2.5])
    slo = TimeCaps(np.zeros(2), np.array([2.05, np.inf]))
    no_harm = TimeCaps(np.array([0.0, 1.0]), np.array([np.inf, 0.05]))
    gains = gains_of(drafted, THROUGHPUT)

    def kept(needed: int, one: TimeCaps, other: TimeCaps) -> tuple[int, bool]:
        ranking = needs_first(gains, np.array([needed, 0]), np.array([2.0, 0.0]), 3)
        objective = np.array([0.0, 1.0, 2.0, 3.0])  # as many as possible
        choice = best_prefix(ranking, objective, seconds, one, other)
        return len(choice.nodes), choice.needs_over_harm

    free = no_caps(2)
    assert kept(0, free, free) == (3, False)
    assert kept(0, slo, free) == (2, False)
    assert kept(0, slo, no_harm) == (0, False)
    assert kept(1, slo, no_harm) == (1, True)
    assert kept(3, slo, no_harm) == (3, True)
    # The second request's SLO is broken anyway; the harm to the first one still counts.
    lost = TimeCaps(np.zeros(2), np.array([np.inf, 0.5]))
    assert kept(0, lost, no_harm) == (0, False)
    # A debt that no prefix settles: the first request's own tokens pay most of it, within the
    # SLO. No need has caused it.
    debt = TimeCaps(np.array([1.0, 0.0]), np.array([-0.8, np.inf]))
    assert kept(0, TimeCaps(np.zeros(2), np.array([1.6, np.inf])), debt) == (1, False)


def test_hopeless_needs_take_what_earns_the_needy_time() -> None:
    """Tokens are worth 100 ms to each; a node that costs all of them 5 ms must earn more."""
    drafted = [DraftTree.chain([1, 2], [0.2, 0.1])] * 5
    gains = gains_of(drafted, THROUGHPUT)

    def urgent(needy: int) -> tuple[list[int], list[int]]:
        needs = np.array([9.0] * needy + [0.0] * (5 - needy))
        counts, hopeless = urgent_nodes(gains, needs, needs, np.full(5, 0.1), 5e-3, 8)
        return counts.tolist(), hopeless.tolist()

    assert urgent(1) == ([1, 0, 0, 0, 0], [0])  # 20 ms, but not 2 ms
    assert urgent(3) == ([1, 1, 1, 0, 0], [0, 1, 2])
    assert urgent(5) == ([0, 0, 0, 0, 0], [0, 1, 2, 3, 4])


@pytest.mark.parametrize(("ratio", "mean", "worst"), [(2, 0.02, 0.10), (4, 0.05, 0.20)])
@pytest.mark.parametrize("power", POWERS)
def test_gap_where_nodes_truly_cost_differently(
    power: float, ratio: int, mean: float, worst: float
) -> None:
    """The cost model counts tokens; attention makes a long request's nodes dearer. Planned with
    the mean cost where one request's nodes cost `ratio` times the other's."""
    rng = np.random.default_rng(0)
    each = np.array([1.0, ratio]) * 0.2 / (1 + ratio)
    planned = np.array([1.0 + each.mean() * nodes for nodes in range(11)])
    gaps = []
    for _ in range(60):
        drafted = random_trees(rng, 2, 5)
        masks, gains = chosen(drafted, power, planned)
        counts = [int(mask.sum()) for mask in masks]
        got = value(power, gains, 1.0 + float(each @ counts))
        best = brute_force(drafted, power, lambda n: 1.0 + float(each @ np.array(n)), 10)
        gaps.append(loss(got, best))
    report(f"power {power}, {ratio}x", gaps)
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

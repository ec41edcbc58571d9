"""Which lane is credited with accepted tokens where a lookup drafts beside the selected lane."""

from collections.abc import Sequence

import pytest

from actors.coordinator.estimates import Costs, Estimates, ForwardSize
from actors.coordinator.events import Event, Left, Verified
from actors.coordinator.settings import Limits, Policies
from benchmarks.simulator.acceptance import Acceptance, synthetic
from benchmarks.simulator.run import Cluster, DrafterSpec, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from policies.catalogue import Calibrations, make_schedule, make_selection, make_speculation
from policies.cost import LinearCost
from policies.request import RoundOutcome

SMALL = DrafterSpec("small", "small", LinearCost(1e-8, 1e-6, 0.001), capacity=2)
LOOKUP = DrafterSpec("ngram", "ngram", None)


def served(*drafters: DrafterSpec) -> tuple[list[RoundOutcome], list[Left]]:
    """Four requests, with a model lane that has capacity for two."""
    acceptance = Acceptance({("", "small"): synthetic(0.8), ("", "ngram"): synthetic(0.5)})
    cluster = Cluster(LinearCost(1e-7, 1e-5, 0.02), KvMemory(10_000), drafters, acceptance)
    arrivals = [Arrival(f"r{n}", 0.01 * n, 20, 60, max_tokens=60) for n in range(4)]
    events: list[Event] = []

    def make(calibrations: Calibrations) -> Policies:
        return Policies(
            make_schedule("fcfs"),
            make_selection("fixed"),
            make_speculation("fixed", calibrations=calibrations),
        )

    limits = Limits(max_batch=4, kv_tokens=10_000)
    simulate(arrivals, cluster, make, limits, observe=events.append)
    rounds = [event for event in events if isinstance(event, Verified)]
    left = [event for event in events if isinstance(event, Left)]
    return [outcome for event in rounds for outcome in event.outcomes], left


def free_of(outcomes: Sequence[RoundOutcome]) -> list[int]:
    return [outcome.accepted_free for outcome in outcomes]


def test_tokens_of_lookups_alone_are_credited_to_no_lane() -> None:
    outcomes, left = served(LOOKUP)
    assert {outcome.lane for outcome in outcomes} == {None}
    assert sum(free_of(outcomes)) > 20
    assert free_of(outcomes) == [outcome.accepted for outcome in outcomes]
    assert all(set(event.statistics.by_lane) == {"ngram"} for event in left)


def test_without_lookups_all_accepted_tokens_are_credited_to_the_lane() -> None:
    outcomes, _ = served(SMALL)
    assert sum(outcome.accepted for outcome in outcomes if outcome.lane == "small") > 20
    assert set(free_of(outcomes)) == {0}


def test_tokens_that_a_lookup_has_proposed_too_are_credited_to_the_lookup() -> None:
    outcomes, left = served(SMALL, LOOKUP)
    with_lane = [outcome for outcome in outcomes if outcome.lane == "small"]
    without = [outcome for outcome in outcomes if outcome.lane is None]
    assert free_of(without) == [outcome.accepted for outcome in without]
    assert all(
        free <= outcome.accepted
        for free, outcome in zip(free_of(with_lane), with_lane, strict=True)
    )
    assert 0 < sum(free_of(with_lane)) < sum(outcome.accepted for outcome in with_lane)
    assert any(set(event.statistics.by_lane) == {"small", "ngram"} for event in left)


def test_a_lane_s_score_counts_no_tokens_that_a_lookup_had_proposed() -> None:
    """Where the lookup is right, drafting only takes time."""
    costs = Costs(LinearCost(0.0, 0.0, 0.02), {"small": LinearCost(0.0, 0.0, 0.001)}, 512, {}, 512)
    estimates = Estimates(costs, [SMALL.view])
    right, wrong = [True] * 40, [False] * 40

    def speed(matched: list[bool], covered: list[bool]) -> float:
        score = estimates.score(SMALL.view, 100, matched, covered, ForwardSize(1, 100))
        return score.tokens / score.seconds

    plain = speed(wrong, wrong)
    assert plain == pytest.approx(1 / 0.02)
    assert speed(right, wrong) > 3 * plain
    assert speed(right, right) == speed(wrong, right)


def test_a_score_includes_the_shared_forward_of_all_requests() -> None:
    """It is compared with measured slots, which include it too."""
    costs = Costs(LinearCost(1e-5, 1e-3, 0.02), {"small": LinearCost(0.0, 0.0, 0.0)}, 512, {}, 512)
    estimates = Estimates(costs, [SMALL.view])
    score = estimates.score(SMALL.view, 100, [False], [False], ForwardSize(16, 1600))
    assert score.tokens == 1.0
    assert score.seconds == pytest.approx(0.016 + 0.016 + 0.02)

"""A plan of lookups is followed for some rounds, but never past what it was made for."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from policies.cost import LinearCost
from policies.protocols import DraftPlan, LaneBatch, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.speculation.planner.objective import Objective
from policies.speculation.planner.policy import Planner, PlannerParams
from policies.tree import DraftTree
from tests.policies.speculation.rounds import Candidate, context, selected, view

CHEAP = context(verify=LinearCost(0.0, 1e-5, 20e-3))
BATCH = [view(f"r{number}", max_tokens=10**6) for number in range(4)]


def plans(
    planner: Planner, batches: Sequence[LaneBatch], rounds: int, around: RoundContext = CHEAP
) -> list[DraftPlan]:
    """Of the lane that is asked first."""
    return [planner.plan(batches, around, 1.0)[0] for _ in range(rounds)]


def made_anew(followed: Sequence[DraftPlan]) -> list[bool]:
    return [after is not before for before, after in pairwise(followed)]


def test_it_is_followed_for_three_rounds_more() -> None:
    assert made_anew(plans(Planner(), [LaneBatch("lookup", BATCH)], 8)) == [
        *([False] * 3 + [True]),
        *[False] * 3,
    ]


def test_lanes_that_rest_meanwhile_do_not_end_it() -> None:
    """Models that do not pay are not thought about for some rounds, then they are."""
    dear = context(verify=CHEAP.verify, draft=LinearCost(0.0, 0.0, 1.0))
    batches = [LaneBatch("lookup", BATCH), LaneBatch("lane", BATCH)]
    followed = plans(Planner(), batches, 60, dear)
    assert made_anew(followed).count(False) > 20


def test_a_model_that_drafts_is_thought_about_in_every_round() -> None:
    batches = [LaneBatch("lookup", BATCH), LaneBatch("lane", BATCH)]
    assert all(made_anew(plans(Planner(), batches, 8)))


@pytest.mark.parametrize(
    "then",
    [
        [LaneBatch("lookup", [*BATCH, view("new")])],
        [LaneBatch("lookup", BATCH[1:])],
        [LaneBatch("lookup", BATCH[1:]), LaneBatch(None, BATCH[:1])],
        [LaneBatch("lookup", BATCH), LaneBatch("another", BATCH)],
    ],
    ids=["one more", "one less", "one elsewhere", "a lane more"],
)
def test_another_batch_gets_a_plan_of_its_own(then: list[LaneBatch]) -> None:
    planner = Planner()
    [before] = plans(planner, [LaneBatch("lookup", BATCH)], 1)
    [after] = plans(planner, then, 1)
    assert after is not before
    assert len(after.limits) == len(then[0].requests)


def test_needs_of_an_slo_are_looked_at_in_every_round() -> None:
    batch = [*BATCH[1:], view("promised", tpot_s=1.0, max_tokens=10**6)]
    assert all(made_anew(plans(Planner(), [LaneBatch("lookup", batch)], 8)))


@pytest.mark.parametrize(("objective", "follows"), [("fair", False), ("throughput", True)])
def test_near_somebodys_line_nothing_is_followed(objective: Objective, follows: bool) -> None:
    """Under the throughput objective there are no lines."""
    planner = Planner(PlannerParams(objective=objective, window=1000))
    for _ in range(15):
        _round_that_costs_three(planner, BATCH)
    followed = plans(planner, [LaneBatch("lookup", BATCH)], 4)
    assert (False in made_anew(followed)) == follows


def _round_that_costs_three(planner: Planner, batch: Sequence[RequestView]) -> None:
    """It takes as long as three plain ones, and brings a token and a half."""
    plans(planner, [LaneBatch("lookup", batch)], 1)
    drafted = [Candidate(one, DraftTree.chain([1], [0.5]), lanes=("lookup",)) for one in batch]
    selected(planner, drafted, CHEAP, 1.0)
    forward_s = CHEAP.verify.predict(0, len(batch))
    planner.observe(
        [
            RoundOutcome(one.name, None, 1, 1, 0, 1, 3 * forward_s, forward_s, 2 * forward_s)
            for one in batch
        ],
        1.0,
    )

"""The planner's precedence, what it drafts and what it leaves, and that it learns."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import ForwardCost
from policies.estimates.calibration import Calibration
from policies.protocols import FirstTokens, Mask, RoundContext
from policies.request import RequestView
from policies.speculation.planner.policy import Planner, PlannerParams
from policies.speculation.planner.step_rule import PlannerStepRule
from policies.tree import ROOT, DraftTree
from tests.policies.speculation.play import draft, plan_alone, play
from tests.policies.speculation.rounds import (
    SEEDED,
    Candidate,
    all_selections,
    candidates,
    gain,
    is_whole,
    round_context,
    selected,
    trees,
    view,
)
from tests.policies.tree_lists import learn

GPU = ForwardCost(alpha=1e-8, gamma=1e-5, delta=20e-3, knee=160, gamma_more=1.1e-4)
GPU_DRAFT = ForwardCost(alpha=0.0, gamma=1e-5, delta=2e-3)


def batch_of(count: int, tpot_s: float | None = None) -> list[RequestView]:
    return [view(f"r{number}", tpot_s=tpot_s, max_tokens=10**6) for number in range(count)]


def kept(masks: Sequence[Mask]) -> list[int]:
    return [int(mask.sum()) for mask in masks]


def level(*path: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(path, np.float32)


# -- the objective -----------------------------------------------------------------------------


def speed(chosen: Sequence[Candidate], masks: Sequence[Mask], context: RoundContext) -> float:
    """Without the time that prompts take of the round, whatever is drafted."""
    read = sum(one.request.context for one in chosen)
    plain = len(chosen) + context.prefill_tokens
    seconds = context.waiting_s + max(one.drafting_s for one in chosen)
    seconds += context.verify.predict(read, plain + sum(kept(masks)))
    seconds -= context.verify.predict(read, plain) - context.verify.predict(read, len(chosen))
    gained = sum(gain(one.tree, mask) for one, mask in zip(chosen, masks, strict=True))
    return (len(chosen) + gained) / seconds


@SEEDED
@given(
    drafted=st.lists(trees(nodes=4), min_size=1, max_size=3),
    gamma=st.sampled_from([1e-5, 1e-3, 4e-3]),
    budget=st.integers(0, 16),
)
def test_selects_what_brute_force_does(drafted: list[DraftTree], gamma: float, budget: int) -> None:
    """Through the whole policy: with the time of drafting and waits, without that of prompts."""
    chosen = candidates(drafted, drafting_s=3e-3)
    context = round_context(
        verify=ForwardCost(1e-6, gamma, 8e-3, knee=6, gamma_more=gamma),
        most_tokens=budget,
        prefill_tokens=2,
        waiting_s=2e-3,
    )
    masks = selected(Planner(), chosen, context, 0.0)
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))
    space = max(0, budget - 2 - len(drafted))
    best = max(
        speed(chosen, selection, context)
        for selection in all_selections(drafted)
        if sum(kept(selection)) <= space
    )
    assert sum(kept(masks)) <= space
    assert speed(chosen, masks, context) == pytest.approx(best, rel=1e-5)


# -- needs and SLOs ----------------------------------------------------------------------------


def late(name: str, tpot_s: float, behind_s: float) -> RequestView:
    """At time 10: 5 tokens behind the first, and `behind_s` later than its TPOT allows."""
    return view(name, tpot_s=tpot_s, generated=6, first_token_s=10.0 - 5 * tpot_s - behind_s)


def test_needs_come_first_the_greatest_before_the_others() -> None:
    """Though the others' drafts are surer: A(r) is 2.1 and 1.6, the budget two tokens."""
    chosen = [
        Candidate(view("free"), DraftTree.chain([1, 2], [0.99, 0.99])),
        Candidate(late("less", 0.1, 0.15), DraftTree.chain([1], [0.9])),
        Candidate(late("more", 0.1, 0.10 + 0.1), DraftTree.chain([1, 2], [0.8, 0.8])),
    ]
    context = round_context(verify=ForwardCost(0.0, 0.0, 10e-3), most_tokens=3 + 2)
    assert kept(selected(Planner(), chosen, context, 10.0)) == [0, 0, 2]
    context = context._replace(most_tokens=3 + 3)
    assert kept(selected(Planner(), chosen, context, 10.0)) == [0, 1, 2]


@pytest.mark.parametrize("drafting_s", [0.0, 1e-3])
def test_no_round_grows_beyond_an_slo(drafting_s: float) -> None:
    """Drafts of others lengthen its wait for the next verdict: AdaServe fills its budget here.
    It has waited for drafting, too; `now` is after that."""
    tight = view("tight", tpot_s=12.2e-3, generated=6, first_token_s=10.0 - 5 * 12.2e-3)
    easy = DraftTree.chain(list(range(8)), [0.95] * 8)
    others = [Candidate(view(f"r{number}"), easy, drafting_s) for number in range(3)]
    context = round_context(verify=ForwardCost(0.0, 5e-4, 8e-3))
    with_slo = [Candidate(tight, DraftTree.empty()), *others]
    without = [Candidate(view("tight"), DraftTree.empty()), *others]
    now = 10.0 + drafting_s
    nodes = sum(kept(selected(Planner(), with_slo, context, now)))
    assert nodes > 0
    assert drafting_s + context.verify.predict(0, 4 + nodes) <= 12.2e-3
    assert drafting_s + context.verify.predict(0, 4 + nodes + 1) > 12.2e-3
    assert sum(kept(selected(Planner(), without, context, now))) > nodes


def test_a_lost_slo_does_not_hold_back_the_others() -> None:
    lost = Candidate(late("lost", 1e-3, 5.0), DraftTree.chain([1], [0.5]))
    easy = Candidate(view("easy"), DraftTree.chain([1, 2, 3], [0.9] * 3))
    masks = selected(Planner(), [lost, easy], round_context(), 10.0)
    assert kept(masks)[1] == 3
    ended = replace(lost.request, max_tokens=7)  # has no use for drafts itself
    plan = plan_alone(Planner(), [ended, easy.request], "lane", round_context(), 10.0)
    assert [limit.depth > 0 for limit in plan.limits] == [False, True]


def test_a_need_out_of_reach_takes_only_what_the_objective_gives() -> None:
    lost = Candidate(late("lost", 0.1, 500.0), DraftTree.chain(list(range(9)), [0.9] * 9))
    sure = Candidate(view("sure"), DraftTree.chain([1, 2, 3], [0.95] * 3))
    context = round_context(most_tokens=2 + 6)
    assert kept(selected(Planner(), [lost, sure], context, 10.0)) == [3, 3]


def test_a_request_behind_its_slo_drafts_where_the_objective_would_not() -> None:
    """Plan and rule serve needs as well, or selection would have nothing to choose from."""
    crowd = batch_of(15)
    context = round_context(verify=ForwardCost(0.0, 1e-3, 8e-3), draft=ForwardCost(0.0, 0.0, 1e-3))
    relaxed = plan_alone(Planner(), [*crowd, view("x")], "lane", context, 10.0)
    assert relaxed.limits[-1].depth == 0
    plan = plan_alone(Planner(), [*crowd, late("x", 0.05, 0.05)], "lane", context, 10.0)
    assert plan.limits[-1].depth > 0


def test_needs_are_those_of_a_round_as_long_as_usual() -> None:
    """A plain round would keep its TPOT, but rounds here take three times as long."""
    context = round_context(verify=ForwardCost(0.0, 1e-3, 8e-3), draft=ForwardCost(0.0, 0.0, 5e-3))
    planner, batch = Planner(), [late("x", 20e-3, 0.0), *batch_of(3)]
    assert plan_alone(planner, batch, "lane", context, 10.0).limits[0].depth == 0
    for _ in range(20):
        selected(planner, [Candidate(view("y"), DraftTree.empty(), 30e-3)], context, 10.0)
    assert plan_alone(planner, batch, "lane", context, 10.0).limits[0].depth > 0


@pytest.mark.parametrize(("requests", "goes_on"), [(10, True), (30, False)])
def test_a_draft_step_must_save_requests_in_need_more_time_than_it_costs(
    requests: int, goes_on: bool
) -> None:
    """The last of them that still drafts earns 0.9 · 0.6 of a token, each of 50 ms; all of them
    wait 2 ms for it. The objective would stop in both cases."""
    context = round_context(verify=ForwardCost(0.0, 1e-7, 20e-3), draft=ForwardCost(0.0, 0.0, 2e-3))
    batch = [late(f"r{number}", 0.05, 0.085) for number in range(requests)]
    plan = plan_alone(Planner(PlannerParams(max_width=1)), batch, "lane", context, 10.0)
    assert plan.rule is not None
    names = [request.name for request in batch]
    assert all(plan.rule(0, names, [level()] * requests))
    frontier = [level(0.9), *[level(1e-6)] * (requests - 1)]
    assert plan.rule(1, names, frontier)[0] == goes_on


def test_a_first_token_is_in_time_where_shorter_drafts_allow_it() -> None:
    """A round of k nodes takes 14 + k ms, and a prompt of five tokens 5 ms more."""
    chosen = candidates([DraftTree.chain(list(range(8)), [0.9] * 8)] * 4)
    context = round_context(verify=ForwardCost(0.0, 1e-3, 10e-3))._replace(prefill_tokens=5)
    free = sum(kept(selected(Planner(), chosen, context, 0.0)))
    assert free > 10
    for due_s, verified in (([0.0255], 6), ([0.0255, 0.0195], 0), ([0.0255, 0.018], 6)):
        waiting = context._replace(first_tokens=FirstTokens(due_s, 5))
        assert sum(kept(selected(Planner(), chosen, waiting, 0.0))) == verified
    lost = context._replace(first_tokens=FirstTokens([0.018], 5))
    assert sum(kept(selected(Planner(), chosen, lost, 0.0))) == free


def test_drafting_stops_in_time_for_a_first_token_and_only_if_it_can_be_met() -> None:
    """Drafts of 2 ms a level, and a verification of 20 ms that reads a prompt in 5 ms."""
    batch = batch_of(4)
    context = round_context(verify=GPU, draft=GPU_DRAFT)
    prompt_tokens = 180  # of which the knee is at 160

    def drafting_s(due_s: float) -> float:
        waiting = context._replace(first_tokens=FirstTokens([1.0 + due_s], prompt_tokens))
        plan = plan_alone(Planner(), batch, "lane", waiting, 1.0)
        return draft(plan, batch, 0.9, waiting)[1]

    free = draft(plan_alone(Planner(), batch, "lane", context, 1.0), batch, 0.9, context)[1]
    read = sum(one.context for one in batch)
    least_s = GPU.predict(read, 4 + prompt_tokens)
    assert drafting_s(1.0) == free
    assert 0.0 < drafting_s(least_s + 6e-3) < 6e-3 < free
    assert drafting_s(least_s + 1e-3) == 0.0
    assert drafting_s(least_s - 1e-3) == free


# -- what drafts, and how far ------------------------------------------------------------------


def looked_up(planner: Planner, context: RoundContext, right: float, rounds: int) -> float:
    """The share of rounds in which a lookup drafts for the only request; what it proposes is right
    with the probability `right`."""
    drafted = 0
    for _ in range(rounds):
        drafts = plan_alone(planner, batch_of(1), "lookup", context, 0.0).limits[0].depth > 0
        tree = DraftTree.chain([1, 2, 3], [right] * 3) if drafts else DraftTree.empty()
        selected(planner, [Candidate(batch_of(1)[0], tree, lanes=("lookup",))], context, 0.0)
        drafted += drafts
    return drafted / rounds


def test_lookups_that_do_not_pay_are_only_tried_and_draft_again_when_they_do() -> None:
    """Drafts take 0.7 ms of rounds of 5 ms."""
    context = round_context(verify=ForwardCost(0.0, 6e-4, 4.4e-3), draft=None, handling_s=7e-4)
    planner = Planner()
    tried = looked_up(planner, context, 0.02, 400)
    assert 0.0 < tried * 7e-4 < 0.015 * 5e-3
    looked_up(planner, context, 0.9, 20)
    assert looked_up(planner, context, 0.9, 100) == 1.0


def test_lookups_beside_a_slow_target_always_draft() -> None:
    context = round_context(verify=ForwardCost(0.0, 1e-3, 80e-3), draft=None, handling_s=7e-4)
    assert looked_up(Planner(), context, 0.02, 400) == 1.0


def test_only_requests_for_which_lookups_pay_are_looked_up() -> None:
    context = round_context(verify=ForwardCost(0.0, 6e-4, 4.4e-3), draft=None, handling_s=1e-3)
    planner, batch, drafted = Planner(), batch_of(4), np.zeros(4)
    for _ in range(400):
        limits = plan_alone(planner, batch, "lookup", context, 0.0).limits
        asked = np.array([limit.depth > 0 for limit in limits])
        drafted += asked
        chosen = [
            Candidate(
                one,
                DraftTree.chain([1, 2], [right] * 2) if drafts else DraftTree.empty(),
                lanes=("lookup",),
            )
            for one, right, drafts in zip(batch, (0.95, 0.02, 0.02, 0.02), asked, strict=True)
        ]
        selected(planner, chosen, context, 0.0)
    assert drafted[0] > 300
    assert drafted[1:].max() < 200


def test_drafts_without_cost_are_kept_where_an_slo_is_missed_anyway() -> None:
    """Drafting has taken twice a plain round; what came of it is free to verify."""
    context = round_context(verify=ForwardCost(0.0, 1e-7, 10e-3))
    chosen = [
        Candidate(view("plain"), DraftTree.empty(), 20e-3),
        Candidate(view("easy"), DraftTree.chain([1, 2, 3], [0.9] * 3), 20e-3),
    ]
    assert kept(selected(Planner(), chosen, context, 0.0)) == [0, 3]


def test_a_lane_that_drafts_for_a_need_drafts_for_all_that_gain() -> None:
    """The step is paid for by one request's SLO; the others would lose more by looking on."""
    context = round_context(
        verify=ForwardCost(0.0, 1e-6, 10e-3), draft=ForwardCost(0.0, 1e-6, 3e-3)
    )
    planner = Planner(PlannerParams(max_width=1))
    play(planner, batch_of(4), 0.2, context, 40)
    others = batch_of(3)
    alone = plan_alone(planner, others, "lane", context, 10.0)
    assert [limit.depth for limit in alone.limits] == [0, 0, 0]
    plan = plan_alone(planner, [late("needy", 0.1, 0.12), *others], "lane", context, 10.0)
    assert all(limit.depth for limit in plan.limits)


# -- planning and drafting ---------------------------------------------------------------------


def rule_for(
    context: RoundContext, calibrations: dict[str, Calibration] | None = None
) -> PlannerStepRule:
    planner = Planner(PlannerParams(max_width=1), calibrations)
    plan = plan_alone(planner, [view("a")], "lane", context, 0.0)
    assert plan.rule is not None
    rule = pickle.loads(pickle.dumps(plan.rule))  # as it travels to the drafter
    assert isinstance(rule, PlannerStepRule)
    return rule


def test_each_request_stops_independently() -> None:
    planner = Planner(PlannerParams(max_width=1))
    plan = plan_alone(planner, [view("a"), view("b")], "lane", round_context(), 0.0)
    assert plan.rule is not None
    assert plan.rule(0, ["a", "b"], [level(), level()]) == [True, True]
    assert plan.rule(1, ["a", "b"], [level(0.95), level(0.01)]) == [True, False]
    assert plan.rule(2, ["a"], [level(0.9)]) == [True]


def test_the_step_rule_calibrates_confidences() -> None:
    """The drafter says 0.95; it has turned out to be right one time in twenty."""
    braggart = Calibration()
    right = np.random.default_rng(0).random(2000) < 0.05
    learn(braggart, [(DraftTree.chain([1], [0.95]), [1 if ok else 2]) for ok in right])
    rule = rule_for(round_context(), {"lane": braggart})
    rule(0, ["a"], [level()])
    assert rule(1, ["a"], [level(0.95)]) == [False]


def test_long_waits_make_longer_drafts_pay() -> None:
    """A round that takes long anyway is lengthened little."""

    def depth(waiting_s: float) -> int:
        rule = rule_for(round_context(verify=ForwardCost(0.0, 1e-3, 5e-3), waiting_s=waiting_s))
        return next(
            (
                n
                for n in range(20)
                if rule(n, ["a"], [level(0.6**n)] if n else [level()]) == [False]
            ),
            20,
        )

    assert depth(0.0) < depth(0.05)


def test_drafting_stops_where_the_verifier_has_no_room() -> None:
    planner = Planner(PlannerParams(max_width=1))
    batch = batch_of(4)
    plan = plan_alone(planner, batch, "lane", round_context(most_tokens=4 + 6), 0.0)
    assert plan.rule is not None
    names = [request.name for request in batch]
    assert plan.rule(0, names, [level()] * 4) == [True] * 4
    assert sum(plan.rule(1, names, [level(0.9)] * 4)) == 2
    assert plan_alone(Planner(), batch, "lane", round_context(most_tokens=4), 0.0).rule is None


def test_no_request_drafts_beyond_its_output() -> None:
    batch = [view("a", generated=97, max_tokens=100), view("b", generated=99, max_tokens=100)]
    plan = plan_alone(Planner(), batch, "lane", round_context(), 0.0)
    assert [limit.depth for limit in plan.limits] == [2, 0]


def test_trees_are_wide_where_verification_is_flat_and_siblings_are_right() -> None:
    flat = round_context(verify=ForwardCost(0.0, 1e-6, 2e-2), draft=ForwardCost(0.0, 1e-6, 1e-3))
    steep = round_context(verify=ForwardCost(0.0, 4e-3, 1e-2), draft=ForwardCost(0.0, 1e-6, 1e-4))

    def width(context: RoundContext, calibration: Calibration | None = None) -> int:
        calibrations = {"lane": calibration} if calibration else None
        [limit] = plan_alone(Planner(None, calibrations), [view("a")], "lane", context, 0.0).limits
        assert limit.depth > 0
        return limit.width

    assert width(flat) == 3
    assert width(flat._replace(most_tokens=1 + 2)) == 1  # a chain of two is better
    assert width(flat._replace(trees=False)) == 1
    assert width(steep) == 1
    never = Calibration()
    pair = DraftTree.build([1, 2], [ROOT, ROOT], [0.5, 0.3])
    learn(never, [(pair, [1 if number % 2 else 9]) for number in range(2000)])
    costly = round_context(verify=ForwardCost(0.0, 4e-4, 2e-2), draft=ForwardCost(0.0, 1e-6, 1e-3))
    assert width(costly) > 1
    assert width(costly, never) == 1


def test_a_lane_without_cost_drafts_where_a_costly_one_does_not() -> None:
    context = round_context(verify=ForwardCost(0.0, 4e-4, 5e-3), draft=ForwardCost(0.0, 0.0, 2e-2))
    assert plan_alone(Planner(), [view("a")], "lane", context, 0.0).limits[0].depth == 0
    assert plan_alone(Planner(), [view("a")], "lookup", context, 0.0).limits[0].depth > 0


def test_a_lane_that_looked_bad_drafts_again_when_catching_up_shows_that_it_has_changed() -> None:
    context = round_context(verify=ForwardCost(0.0, 1e-3, 20e-3), draft=ForwardCost(0.0, 0.0, 2e-3))
    planner, batch = Planner(), batch_of(4)
    play(planner, batch, 0.02, context, 300)
    bad = play(planner, batch, 0.02, context, 300)
    assert bad.seconds / bad.plain_s <= 1.001
    for _ in range(30):
        for one in batch:
            context.acceptance.observe_read(one.name, "lane", [True] * 20, [False] * 20)
    good = play(planner, batch, 0.9, context, 50)
    assert min(good.drafted.values()) >= 50


@SEEDED
@given(
    st.lists(trees(), max_size=5),
    st.lists(st.one_of(st.none(), st.floats(1e-3, 0.1)), min_size=5, max_size=5),
    st.integers(0, 30),
)
def test_every_selection_has_all_ancestors_and_is_within_the_budget(
    drafted: list[DraftTree], tpots: list[float | None], budget: int
) -> None:
    planner = Planner()
    chosen = candidates(drafted, tpots[: len(drafted)], drafting_s=1e-3)
    for _ in range(3):
        masks = selected(planner, chosen, round_context(most_tokens=budget, prefill_tokens=3), 0.05)
        assert [len(mask) for mask in masks] == [len(tree) for tree in drafted]
        assert sum(kept(masks)) <= max(0, budget - 3 - len(drafted))
        assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))

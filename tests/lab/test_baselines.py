"""The policies that papers compare with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.baselines.scheduling import Las, LasParams, lp_sjf
from lab.baselines.selection import (
    EpsilonGreedy,
    EpsilonGreedyParams,
    Greedy,
    SpinEpsilonGreedyParams,
)
from lab.baselines.speculation import Equal, SpecInfer, Threshold, ThresholdParams
from policies.cost import ForwardCost
from policies.request import RequestView
from policies.tree import ROOT, DraftTree
from tests.policies.scheduling.server import Job, serve
from tests.policies.selection.play import CONTEXT, lane, request, requests, slot, table
from tests.policies.speculation.play import plan_alone
from tests.policies.speculation.rounds import (
    SEEDED,
    candidates,
    gain,
    is_whole,
    random_trees,
    round_context,
    selected,
    trees,
    view,
    whole_subsets,
)


def test_greedy_sends_shorter_prompts_to_smaller_ssms_each_filled_before_the_next() -> None:
    lanes = [lane("1.4B", 1), lane("68M", 2)]
    draft = {"1.4B": ForwardCost(0.0, 0.0, 5e-3), "68M": ForwardCost(0.0, 0.0, 1e-3)}
    here = [request(name, length) for name, length in zip("abcd", (900, 10, 90, 950), strict=True)]
    chosen = Greedy().assign(here, lanes, CONTEXT._replace(draft=draft), 0.0)
    assert chosen == {"b": "68M", "c": "68M", "a": "1.4B", "d": None}


@pytest.mark.parametrize(
    ("params", "share"),
    [
        (EpsilonGreedyParams(epsilon=0.1), 0.9 + 0.1 / 4),
        (SpinEpsilonGreedyParams(epsilon=0.2), 0.2 + 0.8 / 4),
    ],
)
def test_epsilon_is_the_probability_of_exploring_and_in_spin_of_exploiting(
    params: EpsilonGreedyParams | SpinEpsilonGreedyParams, share: float
) -> None:
    lanes = [lane(name) for name in "wxyz"]
    truth = table({("r", "w"): 1.0, ("r", "x"): 9.0, ("r", "y"): 3.0, ("r", "z"): 2.0})
    policy = EpsilonGreedy(params)
    chosen = [slot(policy, requests("r"), lanes, truth)["r"] for _ in range(2_000)]
    assert chosen[500:].count("x") / 1_500 == pytest.approx(share, abs=0.05)


def test_exploitation_gives_scarce_places_to_the_requests_that_gain_most() -> None:
    lanes = [lane("x", 1), lane("y", 1)]
    truth = table({("r", "x"): 9.0, ("r", "y"): 2.0, ("s", "x"): 10.0, ("s", "y"): 8.0})
    policy = EpsilonGreedy(EpsilonGreedyParams(epsilon=0.3))
    chosen = [slot(policy, requests("r", "s"), lanes, truth) for _ in range(400)]
    assert chosen[100:].count({"r": "x", "s": "y"}) > 0.5 * 300


def level(*path: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(path, np.float32)


def test_a_batch_drafts_on_for_its_most_confident_request() -> None:
    """Why SpecServe's Table 2 has 6.5 draft tokens in large batches and 3.8 in small ones."""
    policy = Threshold(ThresholdParams(confidence=0.5, max_length=6))
    plan = plan_alone(policy, [view("a"), view("b")], "lane", round_context(), 0.0)
    rule = plan.rule
    assert [limit.depth for limit in plan.limits] == [6, 6]
    assert rule is not None
    assert rule(0, ["a", "b"], [level(), level()]) == [True, True]
    assert rule(1, ["a", "b"], [level(0.9), level(0.1)]) == [True, True]
    # 0.9 · 0.3 and 0.1 · 0.8: the confidence of the token counts, not of the path.
    assert rule(2, ["a", "b"], [level(0.27), level(0.08)]) == [True, True]
    assert rule(3, ["a", "b"], [level(0.1), level()]) == [False, False]


def beam(depth: int, width: int, rng: np.random.Generator) -> DraftTree:
    parents = [ROOT] * width
    for number in range(1, depth):
        below = range((number - 1) * width, number * width)
        parents += sorted(int(rng.choice(below)) for _ in range(width))
    confidence = rng.uniform(0.1, 0.5, len(parents)).tolist()
    return DraftTree.build(list(range(len(parents))), parents, confidence)


@pytest.mark.parametrize("count", [1, 64])
def test_a_tree_has_23_tokens_under_any_load_but_no_forward_more_than_its_limit(count: int) -> None:
    """AdaServe 6.2: 'each draft token tree contains 23 tokens with no upper limit'."""
    policy, context = SpecInfer(), round_context(most_tokens=100_000)
    batch = [view(f"r{number}") for number in range(count)]
    plan = plan_alone(policy, batch, "lane", context, 0.0)
    assert {(limit.depth, limit.width) for limit in plan.limits} == {(8, 3)}
    rng = np.random.default_rng(0)
    chosen = candidates([beam(8, 3, rng) for _ in range(count)])
    masks = selected(policy, chosen, context, 0.0)
    assert {int(mask.sum()) for mask in masks} == {23}
    chosen = candidates(random_trees(rng, 3, 8))
    masks = selected(policy, chosen, round_context(most_tokens=3 + 10), 0.0)
    assert sum(int(mask.sum()) for mask in masks) == 10
    assert all(is_whole(one.tree, mask) for one, mask in zip(chosen, masks, strict=True))


@SEEDED
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 24))
def test_equal_gives_each_request_the_same_number_of_its_best_nodes(
    drafted: list[DraftTree], budget: int
) -> None:
    tpots = [0.001 * (number + 1) for number in range(len(drafted))]  # ignored
    masks = selected(Equal(), candidates(drafted, tpots), round_context(verify_budget=budget), 0.0)
    each = max(0, budget - len(drafted)) // len(drafted)
    for tree, mask in zip(drafted, masks, strict=True):
        assert mask.sum() == min(each, len(tree))
        best = max(gain(tree, other) for other in whole_subsets(tree) if other.sum() <= each)
        assert gain(tree, mask) == pytest.approx(best, rel=1e-5)


def test_lp_sjf_runs_the_shortest_prediction_next_without_preempting() -> None:
    jobs = [
        Job("running", 0.0, 20, predicted_len=20),
        Job("long", 0.1, 9, predicted_len=9),
        Job("short", 0.2, 3, predicted_len=3),
    ]
    served = serve(lp_sjf(), jobs)
    assert list(served.finish_s) == ["running", "short", "long"]
    assert served.preemptions == 0


def test_lp_sjf_takes_a_request_without_prediction_as_max_tokens_long() -> None:
    known, unknown = RequestView("known", 1.0, 10, 100), RequestView("unknown", 0.0, 10, 100)
    known.predicted_len = 99.0
    assert lp_sjf().pick([unknown, known], [], 2, 1.0) == ["known", "unknown"]


def test_las_runs_the_least_served_request_and_swaps_equals_once_per_quantum() -> None:
    served = serve(Las(), [Job("long", 0.0, 100), Job("short", 3.0, 3)])
    assert list(served.finish_s) == ["short", "long"]
    assert served.longest_wait_s["short"] <= served.longest_round_s
    jobs = [Job("a", 0.0, 60), Job("b", 0.0, 60)]  # 60 rounds of 70 ms each
    assert serve(Las(LasParams(quantum_s=0.7)), jobs).preemptions <= 12

"""What a replica says of its drafters at its start follows from what it has measured."""

from collections.abc import Mapping, Sequence

from actors.coordinator.estimates import Costs
from deployments.replica.break_even import break_even_lines
from policies.cost import ForwardCost
from policies.request import LaneView

FAST = ForwardCost(0.0, 1e-3, 4e-3)
SLOW = ForwardCost(0.0, 1e-3, 39e-3)
HEAD = ForwardCost(0.0, 0.25e-3, 0.25e-3)
LOOKUPS = [LaneView("ngram", "ngram", 8), LaneView("suffix", "suffix", 8)]
MODELS = [LaneView("head/0", "head", 8), LaneView("head/1", "head", 8)]


def lines(
    verify: ForwardCost, lanes: Sequence[LaneView], draft: Mapping[str, ForwardCost]
) -> list[str]:
    costs = Costs(verify, draft, verify_budget=8, draft_budgets={}, most_tokens=64)
    return break_even_lines(costs, lanes)


def test_beside_lookups_alone_it_says_how_fast_a_head_must_be() -> None:
    (line,) = lines(SLOW, LOOKUPS, {})
    assert "only lookups draft (ngram, suffix): a forward takes 40.0 ms" in line
    assert "pays at one client if it drafts a token in under 3.0 ms" in line


def test_on_a_fast_target_it_says_that_no_head_gains_much() -> None:
    (line,) = lines(FAST, LOOKUPS, {})
    assert "a token to verify 1.0 ms" in line
    assert "gains hardly anything at one client" in line


def test_each_model_has_a_line_with_the_gain_from_which_it_pays() -> None:
    (line,) = lines(FAST, [*MODELS, *LOOKUPS], {"head/0": HEAD, "head/1": HEAD})
    assert line.startswith("drafter head: a token takes 0.5 ms to draft and 1.0 ms to verify")
    assert "by more than 30%" in line


def test_nothing_is_said_where_nothing_drafts() -> None:
    assert lines(FAST, [], {}) == []

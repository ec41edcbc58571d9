"""Hedge learns from what all lanes read, and switches only where that pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from policies.flat_trees import flatten
from policies.protocols import RoundContext
from policies.request import LaneView, RequestView
from policies.selection.hedge import Hedge
from policies.tree import DraftTree
from tests.policies.selection.play import lane, outcome, request, requests, round_context

AB = [lane("a"), lane("b")]
Right = Callable[[str, str], float]
"""(request, lane) → the probability that the lane's next token is right."""


def by_lane(**right: float) -> Right:
    """The same for every request."""
    return lambda request, lane: right[lane]


class Rounds:
    """The coordinator's side: rounds with drafts of four tokens, and reads of sixteen. A
    verification takes 20 ms, a draft step 1 ms."""

    def __init__(self, lanes: Sequence[LaneView] = AB, context: RoundContext | None = None) -> None:
        self.lanes = lanes
        self.context = context or round_context(lanes)
        self.hedge = Hedge()
        self._rng = np.random.default_rng(0)

    def assign(
        self, here: Sequence[RequestView], lanes: Sequence[LaneView] | None = None
    ) -> Mapping[str, str | None]:
        lanes = self.lanes if lanes is None else lanes
        return dict(self.hedge.assign(here, lanes, self.context, 0.0))

    def slot(
        self, here: Sequence[RequestView], right: Right, drafts: bool = True
    ) -> Mapping[str, str | None]:
        """Without `drafts`, the speculation policy declines to draft."""
        chosen = self.assign(here)
        for view in here:
            at = chosen[view.name] if drafts else None
            if at is not None:
                self.draft(view.name, at, right(view.name, at))
            self.hedge.observe([outcome(view.name, at, 50.0)])
        return chosen

    def draft(self, request: str, lane: str, right: float, rounds: int = 1) -> None:
        tree = flatten([DraftTree.chain([1] * 4, [right] * 4)])
        for _ in range(rounds):
            self.context.acceptance.credit([request], tree, [(lane,)], None)

    def read(self, request: str, lane: str, right: float, covered: bool = False) -> None:
        matched = (self._rng.random(16) < right).tolist()
        self.context.acceptance.rows([request])
        self.context.acceptance.observe_read(request, lane, matched, [covered] * 16)

    def read_next(self, request: str, right: Right) -> str | None:
        """The lane that should catch up on the request does."""
        where = self.hedge.likely_next(request)
        if where is not None:
            self.read(request, where, right(request, where))
        return where

    def serve_before(self, **right: float) -> None:
        """Earlier requests, which all these lanes have read."""
        for number in range(20):
            name = f"before {number}"
            for drafter, share in right.items():
                self.read(name, drafter, share)
            self.context.acceptance.forget(name)

    def assigned_after_reads(
        self, here: Sequence[RequestView], right: Right
    ) -> Mapping[str, str | None]:
        """The mapping after forty slots in which the lanes of `likely_next` read the requests."""
        for _ in range(40):
            self.slot(here, right)
            for view in here:
                self.read_next(view.name, right)
        return self.assign(here)


# -- what is learned ---------------------------------------------------------------------------


def test_a_lane_that_never_drafted_is_found_by_what_it_reads_alone() -> None:
    rounds, here = Rounds(), requests("r")
    rounds.serve_before(a=0.8, b=0.4)
    right = by_lane(a=0.3, b=0.9)
    assert rounds.slot(here, right)["r"] == "a"
    lanes = []
    for _ in range(20):
        rounds.read("r", "b", 0.9)
        lanes.append(rounds.slot(here, right)["r"])
    assert lanes[-1] == "b"
    assert lanes == sorted(lanes, key=str)  # one move, and no way back


def test_a_new_request_starts_on_the_best_drafter_of_earlier_requests() -> None:
    for better, right in (("a", {"a": 0.7, "b": 0.3}), ("b", {"a": 0.3, "b": 0.7})):
        rounds = Rounds()
        rounds.serve_before(**right)
        assert rounds.assign(requests("new")) == {"new": better}


def test_a_drafter_that_has_become_good_is_found_after_a_bad_start() -> None:
    """Although a better one than it was drafts, and another one than it was could be read."""
    rounds = Rounds([lane("a"), lane("b"), lane("c")])
    rounds.serve_before(a=0.7, b=0.02, c=0.6)
    now = by_lane(a=0.7, b=0.95, c=0.6)
    assert rounds.slot(requests("first"), now) == {"first": "a"}
    assert rounds.assigned_after_reads(requests("r"), now) == {"r": "b"}


# -- which lane reads --------------------------------------------------------------------------


@pytest.mark.parametrize("only_once", [False, True])
def test_catch_up_moves_on_to_the_next_drafter_after_some_reads_of_one(only_once: bool) -> None:
    """c is visited as well, although b is better by all evidence; also if c was very bad for a
    single request, since others may differ."""
    rounds = Rounds([lane("a"), lane("b"), lane("c")])
    if only_once:
        rounds.serve_before(a=0.8, b=0.6)
        for _ in range(20):
            rounds.read("unlucky", "c", 0.05)
    else:
        rounds.serve_before(a=0.8, b=0.6, c=0.5)
    right = by_lane(a=0.8, b=0.6, c=0.5)
    here, read = requests("r"), []
    for _ in range(10):
        assert rounds.slot(here, right) == {"r": "a"}
        read.append(rounds.read_next("r", right))
    assert read[0] == "b"
    assert "c" in read
    assert "a" not in read, "its own drafts show as much"


def test_catch_up_visits_the_requests_own_lane_while_that_does_not_draft() -> None:
    """Otherwise nothing would ever be learned about its drafter."""
    rounds, here = Rounds(), requests("r")
    right = by_lane(a=0.8, b=0.2)
    rounds.serve_before(a=0.8, b=0.2)
    assert rounds.assign(here) == {"r": "a"}
    assert rounds.hedge.likely_next("r") == "a"
    rounds.slot(here, right)
    assert rounds.hedge.likely_next("r") == "b"
    rounds.slot(here, right, drafts=False)
    assert rounds.hedge.likely_next("r") == "a"


# -- plain decoding ----------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "choice"), [(0.9, "a"), (0.3, None)])
def test_decodes_plainly_where_drafts_take_more_time_than_they_save(
    right: float, choice: str | None
) -> None:
    rounds = Rounds(AB[:1], round_context(AB[:1], step_s=15e-3))
    rounds.serve_before(a=right)
    assert rounds.assign(requests("r")) == {"r": choice}


def test_the_same_drafter_serves_one_request_and_not_sixteen_that_share_the_forward() -> None:
    """Whose tokens all the others wait for; what was learned from many holds for one."""
    lanes = [lane("a")]
    rounds = Rounds(lanes, round_context(lanes, token_s=2e-3))
    many, right = requests(*map(str, range(16))), by_lane(a=0.5)
    for view in many:
        rounds.draft(view.name, "a", 0.5, rounds=10)
    assert set(rounds.assign(many).values()) == {None}
    assert rounds.assign(many[:1]) == {"0": "a"}
    assert rounds.slot(many[:1], right) == {"0": "a"}


@pytest.mark.parametrize(("found_by_lookup", "choice"), [(False, "a"), (True, None)])
def test_a_lane_is_used_only_if_it_adds_to_the_free_drafters(
    found_by_lookup: bool, choice: str | None
) -> None:
    lanes, lookup = [lane("a")], lane("lookup")
    rounds = Rounds(lanes, round_context(lanes, free=[lookup]))
    for number in range(20):
        rounds.read(f"before {number}", "a", 0.8, covered=found_by_lookup)
        rounds.draft(f"before {number}", "lookup", 0.8 if found_by_lookup else 0.01)
    assert rounds.assign(requests("r")) == {"r": choice}


def test_a_plain_request_returns_to_a_lane_once_reads_show_that_drafting_pays() -> None:
    rounds, here = Rounds(context=round_context(AB, step_s=5e-3)), requests("r")
    rounds.serve_before(a=0.1, b=0.05)
    assert rounds.assign(here) == {"r": None}
    assert rounds.assigned_after_reads(here, by_lane(a=0.9, b=0.05)) == {"r": "a"}


def test_a_request_leaves_a_lane_on_which_nothing_is_ever_drafted() -> None:
    """However good its estimate is: the speculation policy does not draft there."""
    rounds = Rounds()
    right = by_lane(a=0.8, b=0.7)
    rounds.serve_before(a=0.8, b=0.7)
    tried = [rounds.slot(requests("r"), right, drafts=False)["r"] for _ in range(40)]
    assert tried[0] == "a"
    assert "b" in tried


# -- switching ---------------------------------------------------------------------------------


def test_scarce_places_go_to_the_requests_that_gain_most() -> None:
    truth = {("r", "a"): 0.8, ("r", "b"): 0.2, ("s", "a"): 0.85, ("s", "b"): 0.75}
    rounds = Rounds([lane("a", 1), lane("b", 1)])
    here = requests("r", "s")
    chosen = rounds.assigned_after_reads(here, lambda request, lane: truth[request, lane])
    assert chosen == {"r": "a", "s": "b"}


@pytest.mark.parametrize(("left", "read", "choice"), [(100, 0, "b"), (10, 0, "a"), (10, 2000, "b")])
def test_a_switch_must_pay_before_the_request_ends(left: int, read: int, choice: str) -> None:
    """2,000 tokens at 0.1 ms are 0.2 s, which 100 tokens on b instead of a win back, and 10 do not;
    unless b has read them in idle time."""
    lanes = [lane("a"), lane("b", catch_up_s=1e-4)]
    rounds = Rounds(lanes)
    rounds.serve_before(a=0.3, b=0.9)
    view = request("r", prompt_len=2000, max_tokens=left)
    assert rounds.assign([view], lanes[:1]) == {"r": "a"}
    assert rounds.assign([replace(view, read={"a": 2000, "b": read})]) == {"r": choice}


@pytest.mark.parametrize(("active", "expected"), [(1, None), (17, "a")])
def test_requests_that_take_no_lane_count_in_the_time_of_a_round(
    active: int, expected: str | None
) -> None:
    """Alone, a draft row costs a third of the round; beside sixteen plain ones hardly anything."""
    context = round_context(AB, token_s=0.01)._replace(active=active)
    rounds = Rounds(context=context)
    rounds.serve_before(a=0.3, b=0.1)
    assert rounds.assign(requests("r"))["r"] == expected

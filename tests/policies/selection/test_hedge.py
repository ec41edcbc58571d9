"""Hedge learns from the scores of all lanes, pools them, and switches only where that pays."""

from collections import Counter
from dataclasses import replace

import pytest

from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.hedge import Hedge, HedgeParams
from tests.policies.selection.play import lane, outcome, request, requests, slot, table

AB = [lane("a"), lane("b")]
NO_DRAWS = HedgeParams(doubt=0.0)
"""For tests that are not about the random draws."""


def warm(policy: Hedge, a: float, b: float, plain: float = 1.0) -> None:
    """Earlier requests, with scores on both lanes, and others that had no lane."""
    for number in range(20):
        view, without = requests(f"before {number}", f"plain {number}")
        policy.assign([view], AB, 0.0)
        for _ in range(5):
            policy.observe([outcome(view.name, "a", a)])
            policy.observe_score(view.name, "b", b * 0.05, 0.05)
        policy.assign([without], [], 0.0)
        for _ in range(5):
            policy.observe([outcome(without.name, None, plain)])
        policy.forget(view.name)
        policy.forget(without.name)


def assigned_after_scores(
    policy: Hedge,
    here: list[RequestView],
    truth: dict[tuple[str, str], float],
    lanes: list[LaneView],
) -> dict[str, str | None]:
    """The mapping after forty slots in which lanes score the requests that `likely_next` gives
    them."""
    for _ in range(40):
        slot(policy, here, lanes, table(truth))
        for view in here:
            scored = policy.likely_next(view.name)
            if scored is not None:
                policy.observe_score(view.name, scored, truth[view.name, scored] * 0.05, 0.05)
    return dict(policy.assign(here, lanes, 0.0))


def catch_up_lanes(policy: Hedge, request: str, slots: int, goodput: float) -> list[str | None]:
    """The lanes that `likely_next` returns, each of which then reports a score of this goodput."""
    named = []
    for _ in range(slots):
        named.append(policy.likely_next(request))
        policy.observe_score(request, named[-1] or "", goodput * 0.05, 0.05)
    return named


def test_a_lane_that_never_drafted_is_found_by_its_scores_alone() -> None:
    policy = Hedge(NO_DRAWS)
    warm(policy, a=50.0, b=40.0)
    here, truth = requests("r"), table({("r", "a"): 40.0, ("r", "b"): 80.0})
    assert slot(policy, here, AB, truth)["r"] == "a"
    lanes = []
    for _ in range(20):
        policy.observe_score("r", "b", 80.0 * 0.05, 0.05)
        lanes.append(slot(policy, here, AB, truth)["r"])
    assert lanes[-1] == "b"
    assert lanes == sorted(lanes, key=str)  # one move, and no way back


def test_idle_catch_up_visits_every_drafter_until_the_best_is_found() -> None:
    lanes = [lane(name) for name in "abcd"]
    values = {"a": 40.0, "b": 42.0, "c": 38.0, "d": 70.0}
    truth = {("r", name): value for name, value in values.items()}
    assert assigned_after_scores(Hedge(), requests("r"), truth, lanes) == {"r": "d"}


def test_catch_up_moves_on_to_the_next_drafter_after_enough_scores_of_one() -> None:
    """c is visited as well, although b is better by all evidence."""
    lanes = [lane("a"), lane("b"), lane("c")]
    policy = Hedge(NO_DRAWS)
    policy.assign(requests("before"), lanes, 0.0)
    for _ in range(100):
        for name, goodput in (("a", 60.0), ("b", 50.0), ("c", 45.0)):
            policy.observe_score("before", name, goodput * 0.05, 0.05)
    here = requests("r")
    assert policy.assign(here, lanes, 0.0) == {"r": "a"}
    policy.observe([outcome("r", "a", 60.0)])
    named = catch_up_lanes(policy, "r", slots=10, goodput=50.0)
    assert named[0] == "b"
    assert "c" in named


def test_catch_up_also_visits_a_drafter_that_was_bad_for_a_single_request() -> None:
    """However many slots that request had: other requests may differ."""
    lanes = [lane("a"), lane("b"), lane("c")]
    policy = Hedge(NO_DRAWS)
    for number in range(20):
        [before] = requests(f"before {number}")
        policy.assign([before], lanes, 0.0)
        for _ in range(20):
            policy.observe_score(before.name, "a", 60.0 * 0.05, 0.05)
            policy.observe_score(before.name, "b", 50.0 * 0.05, 0.05)
            if number == 0:
                policy.observe_score(before.name, "c", 30.0 * 0.05, 0.05)
        policy.forget(before.name)
    assert policy.assign(requests("r"), lanes, 0.0) == {"r": "a"}
    policy.observe([outcome("r", "a", 60.0)])
    named = catch_up_lanes(policy, "r", slots=10, goodput=50.0)
    assert named[0] == "b"
    assert "c" in named


def test_catch_up_visits_the_requests_own_lane_while_that_does_not_draft() -> None:
    """Otherwise nothing would ever be learned about its drafter."""
    policy = Hedge(NO_DRAWS)
    warm(policy, a=60.0, b=50.0)
    assert policy.assign(requests("r"), AB, 0.0) == {"r": "a"}
    assert policy.likely_next("r") == "a"
    policy.observe([outcome("r", "a", 60.0)])
    assert policy.likely_next("r") == "b"
    policy.observe([outcome("r", None, 60.0)])
    assert policy.likely_next("r") == "a"


def test_a_request_leaves_a_lane_on_which_nothing_is_ever_drafted() -> None:
    """However good its estimate was: the speculation policy does not draft there."""
    policy = Hedge(NO_DRAWS)
    warm(policy, a=60.0, b=55.0, plain=20.0)
    tried = []
    for _ in range(40):
        tried.append(policy.assign(requests("r"), AB, 0.0)["r"])
        policy.observe([outcome("r", None, 20.0)])
    assert tried[0] == "a"
    assert "b" in tried


@pytest.mark.parametrize(("reluctance", "choice"), [(0.1, "a"), (0.0, None)])
def test_a_lane_is_kept_where_plain_decoding_is_hardly_better(
    reluctance: float, choice: str | None
) -> None:
    policy = Hedge(replace(NO_DRAWS, reluctance=reluctance))
    warm(policy, a=40.0, b=35.0, plain=43.0)
    assert policy.assign(requests("r"), AB, 0.0) == {"r": choice}


@pytest.mark.parametrize(("stay", "choice"), [(0.0, "b"), (0.02, "a")])
def test_a_gain_within_the_noise_causes_no_switch(stay: float, choice: str) -> None:
    policy = Hedge(replace(NO_DRAWS, stay=stay))
    here = requests("r")
    policy.assign(here, AB[:1], 0.0)
    for _ in range(200):
        policy.observe([outcome("r", "a", 50.0)])
        policy.observe_score("r", "a", 50.0 * 0.05, 0.05)
    policy.assign(here, AB, 0.0)
    for _ in range(200):
        policy.observe_score("r", "b", 50.5 * 0.05, 0.05)
    policy.observe([outcome("r", "a", 50.0)])
    for _ in range(10):
        slot(policy, here, AB, table({("r", "a"): 50.0, ("r", "b"): 50.5}))
    assert policy.assign(here, AB, 0.0) == {"r": choice}


def test_a_gain_within_the_noise_does_not_end_plain_decoding() -> None:
    for stay, choice in ((0.0, "a"), (0.02, None)):
        policy = Hedge(replace(NO_DRAWS, stay=stay, reluctance=0.0))
        here = requests("r")
        policy.assign(here, [], 0.0)
        for _ in range(2000):
            policy.observe([outcome("r", None, 50.0)])
        policy.assign(here, AB[:1], 0.0)
        for _ in range(2000):
            policy.observe_score("r", "a", 50.5 * 0.05, 0.05)
        policy.observe([outcome("r", None, 50.0)])
        policy.assign(here, [], 0.0)
        assert policy.assign(here, AB[:1], 0.0) == {"r": choice}


def test_a_new_request_starts_on_the_best_drafter_of_earlier_requests() -> None:
    policy = Hedge(NO_DRAWS)
    warm(policy, a=30.0, b=60.0)
    assert policy.assign(requests("new"), AB, 0.0) == {"new": "b"}


def test_a_drafter_that_only_other_replicas_have_is_ignored() -> None:
    """As during the rollout of a new config."""
    other = Hedge(NO_DRAWS)
    slot(other, requests("there"), [*AB, lane("new")], table({("there", "a"): 40.0}))
    other.observe_score("there", "new", 9.0, 0.05)
    policy = Hedge(NO_DRAWS)
    warm(policy, a=50.0, b=40.0)
    policy.pool(other.export())
    assert policy.assign(requests("r"), AB, 0.0) == {"r": "a"}
    assert policy.likely_next("r") in ("a", "b")


def test_lanes_of_one_drafter_share_its_evidence() -> None:
    policy = Hedge(NO_DRAWS)
    warm(policy, a=30.0, b=60.0)
    lanes = [LaneView("new a", "a", 4), LaneView("new b", "b", 4)]
    assert policy.assign(requests("new"), lanes, 0.0) == {"new": "new b"}


def test_without_evidence_requests_try_different_drafters() -> None:
    lanes = [lane(name, 40) for name in "abcd"]
    tried = Counter(Hedge().assign(requests(*map(str, range(40))), lanes, 0.0).values())
    assert all(tried[name] >= 3 for name in "abcd")


def test_an_untried_drafter_is_tried_although_plain_decoding_has_been_measured() -> None:
    policy = Hedge(HedgeParams(reluctance=0.0))
    early = request("early")
    policy.assign([early], [], 0.0)
    for _ in range(100):
        policy.observe([outcome("early", None, 50.0)])
    many = requests(*map(str, range(20)))
    tried = Counter(policy.assign([early, *many], [lane("a", 40)], 0.0).values())
    assert 5 <= tried["a"] <= 16


@pytest.mark.parametrize(("plain", "choice"), [(30.0, "a"), (60.0, None)])
def test_decodes_plainly_where_that_was_measured_to_be_better(
    plain: float, choice: str | None
) -> None:
    policy = Hedge(NO_DRAWS)
    warm(policy, a=40.0, b=35.0, plain=plain)
    assert policy.assign(requests("r"), AB, 0.0) == {"r": choice}


def test_plain_decoding_is_tried_where_drafting_takes_most_of_the_slot() -> None:
    """No round was plain yet; a slot without its drafting time is an upper bound of a plain one."""
    policy = Hedge(NO_DRAWS)
    here, lanes = requests("r"), [lane("a")]
    plain = RoundOutcome("r", None, 0, 0, 0, 1, seconds=0.02)
    drafted = RoundOutcome("r", "a", 4, 4, 1, 2, seconds=0.1, draft_s=0.08)
    chosen = []
    for _ in range(30):
        where = policy.assign(here, lanes, 0.0)["r"]
        chosen.append(where)
        policy.observe([drafted if where else plain])
    assert chosen[0] == "a"
    assert set(chosen[-10:]) == {None}


@pytest.mark.parametrize(("found_by_lookup", "choice"), [(0, "a"), (3, None)])
def test_a_lane_is_used_only_if_it_adds_to_the_free_drafters(
    found_by_lookup: int, choice: str | None
) -> None:
    """Rounds of four tokens in 50 ms, 10 of them drafting: if lookup had proposed the three that
    were accepted, the round would have gained as much without the lane, and sooner."""
    policy = Hedge(NO_DRAWS)
    here, lanes = requests("r"), [lane("a")]
    drafted = RoundOutcome(
        "r", "a", 4, 4, 3, 4, seconds=0.05, draft_s=0.01, accepted_free=found_by_lookup
    )
    alone = RoundOutcome(
        "r", None, 4, 4, found_by_lookup, 1 + found_by_lookup, 0.04, accepted_free=found_by_lookup
    )
    for _ in range(30):
        where = policy.assign(here, lanes, 0.0)["r"]
        policy.observe([drafted if where else alone])
    assert where == choice


def test_a_plain_request_returns_to_a_lane_once_scores_show_that_drafting_pays() -> None:
    policy = Hedge(NO_DRAWS)
    warm(policy, a=40.0, b=35.0, plain=60.0)
    here = requests("r")
    assert policy.assign(here, AB, 0.0) == {"r": None}
    truth = {("r", "a"): 120.0, ("r", "b"): 30.0}
    assert assigned_after_scores(policy, here, truth, AB) == {"r": "a"}


def test_scarce_places_go_to_the_requests_that_gain_most() -> None:
    lanes = [lane("a", 1), lane("b", 1)]
    truth = {("r", "a"): 90.0, ("r", "b"): 20.0, ("s", "a"): 100.0, ("s", "b"): 80.0}
    assert assigned_after_scores(Hedge(), requests("r", "s"), truth, lanes) == {"r": "a", "s": "b"}


@pytest.mark.parametrize(("left", "choice"), [(1000, "b"), (100, "a")])
def test_a_switch_must_pay_before_the_request_ends(left: int, choice: str) -> None:
    """2,000 tokens at 1 ms are 2 s; 300 tokens on b instead of a win them back."""
    lanes = [lane("a"), lane("b", catch_up_s=1e-3)]
    policy = Hedge(replace(NO_DRAWS, horizon_tokens=1000))
    view = request("r", prompt_len=2000, max_tokens=left)
    policy.assign([view], lanes[:1], 0.0)
    warm(policy, a=50.0, b=75.0)
    assert policy.assign([view], lanes, 0.0) == {"r": choice}


def test_catch_up_in_idle_time_makes_the_switch_free() -> None:
    """The same long context, but the score says that b has caught up."""
    lanes = [lane("a"), lane("b", catch_up_s=1e-3)]
    policy = Hedge(NO_DRAWS)
    view = request("r", prompt_len=2000, max_tokens=100)
    policy.assign([view], lanes[:1], 0.0)
    policy.assign([view], lanes, 0.0)
    for _ in range(30):
        policy.observe([outcome("r", "a", 50.0)])
        policy.observe_score("r", "b", 75.0 * 0.05, 0.05)
    assert policy.assign([view], lanes, 0.0) == {"r": "b"}


def test_old_evidence_decays_so_that_a_changing_text_is_followed() -> None:
    policy = Hedge(NO_DRAWS)
    here = requests("r")
    first = {("r", "a"): 80.0, ("r", "b"): 40.0}
    for _ in range(5):
        assert assigned_after_scores(policy, here, first, AB) == {"r": "a"}
    then = {("r", "a"): 40.0, ("r", "b"): 80.0}
    assert assigned_after_scores(policy, here, then, AB) == {"r": "b"}


@pytest.mark.parametrize(("places", "regret"), [(2, 0.0), (1, (1 - 40 / 50) / 2)])
def test_regret_is_the_goodput_that_scarce_places_cost(places: int, regret: float) -> None:
    policy = Hedge(NO_DRAWS)
    assert policy.regret == 0.0
    truth = {(name, on): 50.0 if on == "a" else 40.0 for name in ("one", "two") for on in "ab"}
    lanes = [lane("a", capacity=places), lane("b")]
    assigned_after_scores(policy, requests("one", "two"), truth, lanes)
    assert policy.regret == pytest.approx(regret, abs=0.02)

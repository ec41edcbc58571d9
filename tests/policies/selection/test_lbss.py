"""LBSS against Spin's section IV and against our reading of it, deviation by deviation."""

from collections import Counter
from itertools import groupby

import pytest

from policies.request import LaneView, RoundOutcome
from policies.selection.lbss import Lbss, LbssParams
from tests.policies.selection.play import CONTEXT, lane, outcome, request, requests, slot, table

ABC = [lane("a"), lane("b"), lane("c")]
SAME = table({(name, one): 10.0 for name in "rstuvwxyz" for one in "abc"})


def play(policy: Lbss, slots: int, goodput: dict[str, float]) -> list[str | None]:
    """The lanes of a lone request, slot by slot."""
    here = requests("r")
    truth = table({("r", one): value for one, value in goodput.items()})
    return [slot(policy, here, ABC, truth)["r"] for _ in range(slots)]


def test_epochs_are_alpha_slots_in_chunks_of_beta_and_then_two_to_the_k() -> None:
    """Figure 8. Lane c is the best, so whatever is not on c explores."""
    alpha, beta = 12, 3
    lanes = play(Lbss(LbssParams(alpha, beta)), 100, {"a": 1.0, "b": 2.0, "c": 9.0})
    start = 0
    for k in (1, 2, 3, 4):
        explored = lanes[start : start + alpha]
        for chunk in range(0, alpha, beta):
            assert len(set(explored[chunk : chunk + beta])) == 1
        assert set(lanes[start + alpha : start + alpha + 2**k]) == {"c"}
        start += alpha + 2**k


def test_each_chunk_draws_a_fresh_lane_from_all() -> None:
    """The printed Algorithm 2 draws once and never advances t; the text draws for each chunk."""
    alpha, beta = 600, 2
    lanes = play(Lbss(LbssParams(alpha, beta)), alpha, {"a": 1.0, "b": 1.0, "c": 1.0})
    drawn = Counter(lanes[::beta])
    assert all(70 <= drawn[one.name] <= 130 for one in ABC)  # 100 each, ±4 deviations
    follows = Counter(zip(lanes[::beta], lanes[beta::beta], strict=False))
    assert len(follows) == 9


def test_of_requests_over_a_lanes_capacity_random_ones_sit_out_the_chunk() -> None:
    policy = Lbss(LbssParams(alpha=400, beta=4))
    here, one = requests(*"rstuvwxyz"), [lane("a", capacity=3)]
    assigned_chunks: Counter[str] = Counter()
    for _ in range(100):
        chunk = [slot(policy, here, one, SAME) for _ in range(4)]
        assert chunk[1:] == chunk[:-1]
        assigned = [name for name, where in chunk[0].items() if where == "a"]
        assert len(assigned) == 3
        assigned_chunks.update(assigned)
    assert all(15 <= assigned_chunks[view.name] <= 52 for view in here)  # 33 each, ±4 deviations


def explored(
    goodput: dict[tuple[str, str], float], params: LbssParams, lanes: list[LaneView]
) -> Lbss:
    """A policy whose requests have just ended the exploration of their first epoch."""
    names = sorted({name for name, _ in goodput})
    policy = Lbss(params)
    for _ in range(params.alpha):
        slot(policy, requests(*names), lanes, table(goodput))
    return policy


def test_exploitation_is_the_matching_of_greatest_total_goodput_under_capacities() -> None:
    """Both prefer a; r would lose more without it (eq. 10-12)."""
    lanes = [lane("a", 1), lane("b", 1)]
    goodput = {("r", "a"): 9.0, ("r", "b"): 2.0, ("s", "a"): 10.0, ("s", "b"): 8.0}
    policy = explored(goodput, LbssParams(alpha=40, beta=2), lanes)
    assert policy.assign(requests("r", "s"), lanes, CONTEXT, 0.0) == {"r": "a", "s": "b"}


def test_estimates_average_the_exploration_of_all_epochs() -> None:
    """By the second alone, b would be best."""
    params = LbssParams(alpha=30, beta=1, switch_weight=0.0)
    policy = Lbss(params)
    play(policy, params.alpha + 2, {"a": 8.0, "b": 5.0, "c": 1.0})
    play(policy, params.alpha, {"a": 6.0, "b": 7.0, "c": 1.0})
    assert set(play(policy, 4, {"a": 6.0, "b": 7.0, "c": 1.0})) == {"a"}


def test_a_pair_never_seen_takes_the_mean_over_requests() -> None:
    """A new request that has only tried a switches to b, which was good for others."""
    params = LbssParams(alpha=20, beta=20)
    truth = table({(name, one): v for name in "rs" for one, v in (("a", 10.0), ("b", 50.0))})
    lanes = [lane("a"), lane("b")]
    tried: list[str | None] = []
    seed = 0
    while tried != ["b", "a"]:
        policy, seed = Lbss(params, seed), seed + 1
        tried = []
        for name in "rs":
            here = requests(name)
            tried.append([slot(policy, here, lanes, truth)[name] for _ in range(20)][-1])
    assert policy.assign(here, lanes, CONTEXT, 0.0) == {"s": "b"}


@pytest.mark.parametrize("lanes_change", [False, True])
def test_a_request_without_a_place_decodes_plainly_and_is_matched_next(lanes_change: bool) -> None:
    """Requests take turns to wait, chunk by chunk, and never wait for 2^k slots; also where a lane
    without places comes and goes, so that the matching is solved at every slot."""
    params = LbssParams(alpha=2, beta=2, switch_weight=0.0)
    fleets = [[lane("a", 2)], [lane("a", 2), lane("b", 0)] if lanes_change else [lane("a", 2)]]
    here = requests("r", "s", "t")
    truth = table({("r", "a"): 9.0, ("s", "a"): 8.0, ("t", "a"): 1.0})
    policy = Lbss(params)
    until_fifth_epoch = 4 * params.alpha + 2 + 4 + 8 + 16
    played = [slot(policy, here, fleets[turn % 2], truth) for turn in range(until_fifth_epoch + 34)]
    chosen = played[until_fifth_epoch + params.alpha :]
    for view in here:
        runs = [
            (where, len(list(slots)))
            for where, slots in groupby(mapping[view.name] for mapping in chosen)
        ]
        waits = [length for where, length in runs if where is None]
        assert max(waits, default=0) <= 2 * params.beta
        assert sum(length for where, length in runs if where == "a") >= 8


@pytest.mark.parametrize(("switch_weight", "destination"), [(0.0, "b"), (1000.0, "a")])
def test_switching_costs_recomputation_time_by_its_weight(
    switch_weight: float, destination: str
) -> None:
    """Eq. 6: b is better by 1 token/s, and 1,000 tokens of context take 10 ms to catch up on;
    over the 2 slots of the first exploitation that is 5 tokens/s a slot at λ = 1000."""
    lanes = [lane("a", catch_up_s=1e-5), lane("b", catch_up_s=1e-5)]
    params = LbssParams(alpha=20, beta=1, switch_weight=switch_weight)
    truth = table({("r", "a"): 50.0, ("r", "b"): 51.0})
    here = [request("r", prompt_len=1000)]
    for seed in range(100):
        policy = Lbss(params, seed)
        last = [slot(policy, here, lanes, truth)["r"] for _ in range(params.alpha)][-1]
        if last == "a":
            break
    assert policy.assign(here, lanes, CONTEXT, 0.0) == {"r": destination}


def test_goodput_excludes_recomputation_after_a_switch() -> None:
    """Eq. 6 has a term of its own for it. Two tokens in 0.14 s are fewer than 15 a second; without
    40 tokens of catch-up they take 0.1 s."""
    lanes = [lane("a", catch_up_s=1e-3), lane("b")]
    policy = Lbss(LbssParams(alpha=20, beta=1, switch_weight=0.0))
    here = requests("r")
    better = RoundOutcome("r", "a", 4, 4, 1, 2, seconds=0.14, draft_s=0.05, caught_up=40)
    for _ in range(20):
        where = policy.assign(here, lanes, CONTEXT, 0.0)["r"]
        policy.observe([better if where == "a" else outcome("r", "b", 15.0)])
    assert policy.assign(here, lanes, CONTEXT, 0.0) == {"r": "a"}


def test_likely_next_is_the_lane_drawn_one_chunk_ahead_or_the_best_estimate() -> None:
    """Section IV-C. With free places everywhere the prediction is always right."""
    params = LbssParams(alpha=12, beta=3, switch_weight=0.0)
    policy = Lbss(params)
    here, truth = requests("r"), table({("r", "a"): 1.0, ("r", "b"): 2.0, ("r", "c"): 9.0})
    predicted: list[str | None] = []
    actual: list[str | None] = []
    for _ in range(200):
        actual.append(slot(policy, here, ABC, truth)["r"])
        predicted.append(policy.likely_next("r"))
    moves = [turn for turn in range(1, 200) if actual[turn] != actual[turn - 1]]
    assert len(moves) > 10
    assert all(predicted[turn - 1] == actual[turn] for turn in moves)
    # Also one slot earlier, which leaves time to catch up.
    assert all(predicted[turn - 2] == actual[turn] for turn in moves)


@pytest.mark.parametrize(("alpha", "beta"), [(8, 3), (4, 8), (8, 0)])
def test_alpha_must_be_a_multiple_of_beta(alpha: int, beta: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        LbssParams(alpha, beta)

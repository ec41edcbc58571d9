"""Properties of every selection policy, however requests and lanes come and go."""

import pickle
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.baselines.selection import EpsilonGreedy, Greedy, SpinEpsilonGreedyParams
from lab.studies.selection_oracle import OracleSelection
from policies.protocols import Selection
from policies.request import LaneView
from policies.selection.fixed import Fixed
from policies.selection.hedge import Hedge
from policies.selection.lbss import Lbss
from tests.policies.selection.play import lane, outcome, request, requests, round_context, slot


def goodput(name: str, drafter: str | None) -> float:
    """Differs from request to request and from lane to lane."""
    return 20.0 if drafter is None else 30.0 + (7 * len(name) + 3 * ord(drafter[-1])) % 11


POLICIES: dict[str, Callable[[], Selection]] = {
    "fixed": Fixed,
    "greedy": Greedy,
    "epsilon_greedy": EpsilonGreedy,
    "spin_epsilon_greedy": lambda: EpsilonGreedy(SpinEpsilonGreedyParams()),
    "lbss": Lbss,
    "hedge": Hedge,
    "oracle": lambda: OracleSelection(goodput),
}
every_policy = pytest.mark.parametrize("name", POLICIES)


def visit(policy: Selection, seed: int, turns: int) -> list[dict[str, str | None]]:
    """Requests and lanes come, go, and come back; some rounds take longer than others."""
    rng = np.random.default_rng(seed)
    here = requests("r0", "r1")
    away = []
    fleet = [LaneView(f"lane {i}", "ab"[i % 2], capacity=1 + i) for i in range(4)]
    lanes, context = fleet[:2], round_context(fleet)
    created = 2
    mappings = []
    for _ in range(turns):
        event = rng.integers(8)
        if event == 0:
            here.append(request(f"r{created}", prompt_len=int(rng.integers(1, 200))))
            created += 1
        elif event == 1 and here:
            gone = here.pop(int(rng.integers(len(here)))).name
            policy.forget(gone)
            context.acceptance.forget(gone)
        elif event == 2 and here:
            away.append(here.pop())
        elif event == 3 and away:
            here.append(away.pop())
        elif event == 4:
            lanes = [one for one in fleet if rng.random() < 0.6]
        chosen = dict(policy.assign(here, lanes, context, 0.0))
        mappings.append(chosen)
        assert chosen.keys() == {view.name for view in here}
        load = Counter(name for name in chosen.values() if name is not None)
        room = {one.name: one.capacity for one in lanes}
        assert all(load[name] <= room.get(name, 0) for name in load)
        for view in here:
            assert policy.likely_next(view.name) in [*room, None]
        ended = [view.name for view in here if rng.random() < 0.7]
        slot(policy, here, lanes, goodput, ended, context)
        for view in here:
            if rng.random() < 0.3:
                name, right = fleet[int(rng.integers(4))].name, rng.random(8) < 0.5
                context.acceptance.observe_read(view.name, name, right.tolist(), [False] * 8)
    return mappings


@every_policy
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_every_request_is_mapped_to_a_lane_with_a_free_place_or_to_none(
    name: str, seed: int
) -> None:
    visit(POLICIES[name](), seed, turns=60)


@every_policy
def test_equal_seeds_give_equal_mappings(name: str) -> None:
    assert visit(POLICIES[name](), 5, 200) == visit(POLICIES[name](), 5, 200)


@every_policy
def test_requests_and_lanes_that_have_left_leave_no_state(name: str) -> None:
    policy = POLICIES[name]()
    fleets = [
        [LaneView(f"{generation:04}{d}", d, capacity=2) for d in "xyz"] for generation in range(100)
    ]
    context = round_context([one for lanes in fleets for one in lanes])

    def size_after(generations: range) -> int:
        for generation in generations:
            here, lanes = requests(f"{generation:04}a", f"{generation:04}b"), fleets[generation]
            for _ in range(20):
                slot(policy, here, lanes, goodput, context=context)
                policy.likely_next(here[0].name)
            policy.assign([], [], context, 0.0)
            for view in here:
                policy.forget(view.name)
                context.acceptance.forget(view.name)
        return len(pickle.dumps(policy))

    few = size_after(range(20))
    many = size_after(range(20, 100))
    assert many <= few + 100  # counters grow by digits


@every_policy
def test_a_late_outcome_or_read_of_a_forgotten_request_is_ignored(name: str) -> None:
    policy = POLICIES[name]()
    here, lanes = requests("a", "b"), [lane("x"), lane("y")]
    context = round_context(lanes)
    for _ in range(30):
        slot(policy, here, lanes, goodput, context=context)
    policy.forget("a")
    context.acceptance.forget("a")
    before = len(pickle.dumps(policy))
    policy.observe([outcome("a", "x", 30.0)])
    context.acceptance.observe_read("a", "x", [True], [False])
    assert len(pickle.dumps(policy)) <= before + 10
    assert policy.likely_next("a") is None
    assert policy.assign(here[1:], lanes, context, 0.0).keys() == {"b"}


@every_policy
def test_a_mapping_is_kept_while_no_slot_ends_and_no_request_or_lane_changes(name: str) -> None:
    policy = POLICIES[name]()
    here, lanes = requests(*"abcdefgh"), [lane("x", 3), lane("y", 3)]
    context = round_context(lanes)
    for _ in range(7):
        slot(policy, here, lanes, goodput, context=context)
    first = dict(policy.assign(here, lanes, context, 0.0))
    costlier = [LaneView(one.name, one.drafter, one.capacity, catch_up_s=1.0) for one in lanes]
    for _ in range(20):
        assert policy.assign(here[::-1], costlier, context, 0.0) == first


@pytest.mark.parametrize("name", ["hedge", "fixed"])
def test_requests_are_spread_over_the_lanes_of_one_drafter(name: str) -> None:
    lanes = [LaneView("a/0", "a", 16), LaneView("a/1", "a", 16)]
    policy, context = POLICIES[name](), round_context(lanes)
    here = requests(*(f"r{number}" for number in range(16)))

    chosen = policy.assign(here, lanes, context, 0.0)

    assert Counter(chosen.values()) == {"a/0": 8, "a/1": 8}

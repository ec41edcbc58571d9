"""The numbers of a replica's last seconds: right while they are asked for, nothing otherwise."""

import json
from typing import Any

import pytest

from actors.coordinator.events import CaughtUp, Drafted, Verified, VerifiedTrees
from deployments.replica.live import LiveNumbers
from policies.flat_trees import flatten
from policies.request import LaneView, RoundOutcome
from policies.tree import DraftTree

LANES = [
    LaneView("tiny/0", "tiny", 8),
    LaneView("tiny/1", "tiny", 8),
    LaneView("ngram", "ngram", 8),
]
TREES = flatten([DraftTree.chain([1, 2, 3, 4], [0.5] * 4), DraftTree.chain([1, 2], [0.5] * 2)])
LOAD = {"running": 2.0, "waiting": 1.0, "goodput": 9.0, "attainment": 1.0}


def outcome(name: str, lane: str | None, drafted: int, accepted: int) -> RoundOutcome:
    return RoundOutcome(name, lane, drafted, drafted, accepted, accepted + 1, 0.1)


def observe_rounds(numbers: LiveNumbers, begin: float, rounds: int) -> None:
    """Rounds of 0.1 s: 0.03 s of drafting, 0.06 s of verifying."""
    for number in range(rounds):
        at_s = begin + 0.1 * number
        outcomes = (
            outcome("a name", "tiny/1", 4, 3),
            outcome("b", None, 2, 0),
            outcome("b", None, 0, 0),
        )
        trees = (TREES, None, [["tiny/1"], ["ngram"]], [(0, 1, 2), ()])
        drafts = VerifiedTrees(*trees, ["a name", "b"])
        numbers.observe(Drafted(at_s + 0.03, "tiny/1", 0.03, 2, 8))
        numbers.observe(Verified(at_s + 0.09, 0.06, 0.04, 100, 9, 0, outcomes, drafts=drafts))


def read(numbers: LiveNumbers, now: float, seconds: float = 5.0) -> dict[str, Any]:
    return numbers.read(seconds, now, LOAD, None).model_dump()


def test_the_numbers_add_up() -> None:
    numbers = LiveNumbers("r1", LANES)
    read(numbers, 100.0)
    observe_rounds(numbers, 100.0, 20)
    numbers.observe(CaughtUp(101.99, "tiny/0", 0.5, 7))
    shown = read(numbers, 102.0)
    assert shown["goodput"] == pytest.approx(20 * 6 / 2.0)
    assert shown["drafted"] == {"tiny": 80, "ngram": 40}
    assert shown["accepted"] == {"tiny": 60, "ngram": 0}
    assert (shown["running"], shown["waiting"], shown["attainment"]) == (2, 1, None)
    busy = {one["name"]: sum(end - start for start, end in one["busy"]) for one in shown["hosts"]}
    assert busy == pytest.approx({"verifier": 1.2, "tiny/0": 0.5, "tiny/1": 0.6, "ngram": 0.0})
    assert [one["drafter"] for one in shown["hosts"]] == [None, "tiny", "tiny", "ngram"]
    assert "a name" not in json.dumps(shown), "numbers only"
    assert read(numbers, 102.0, seconds=1.0)["drafted"]["tiny"] == 40

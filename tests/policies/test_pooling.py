"""Replicas that pool their statistics decide as one replica with all observations would."""

import json

from policies.pooling import summed
from policies.selection.lbss import Lbss, LbssParams
from tests.policies.selection.play import CONTEXT, lane, outcome, request

LANES = [lane("a"), lane("b")]
PARAMS = LbssParams(alpha=2, beta=2, switch_weight=0.0)
"""Nearly deterministic."""


def trained(a: float, b: float, requests: int = 40) -> Lbss:
    """A policy whose earlier requests had these goodputs, alternately on lane a and on lane b."""
    policy = Lbss(PARAMS)
    for number in range(requests):
        view = request(f"before {number}")
        policy.assign([view], LANES, CONTEXT, 0.0)
        lane, goodput = ("a", a) if number % 2 else ("b", b)
        for _ in range(2):  # the first slot includes the prefill and is not learned from
            policy.observe([outcome(view.name, lane, goodput)])
        policy.forget(view.name)
    return policy


def choice(policy: Lbss) -> str | None:
    """The lane of a new request after two slots of medium goodput on any lane."""
    view = request("new")
    for _ in range(2):
        lane = policy.assign([view], LANES, CONTEXT, 0.0)[view.name]
        policy.observe([outcome(view.name, lane, 30.0)])
    return policy.assign([view], LANES, CONTEXT, 0.0)[view.name]


def test_a_new_replica_gets_the_best_drafter_from_the_others_last_statistics() -> None:
    for best, a, b in (("a", 50.0, 10.0), ("b", 10.0, 50.0)):
        policy = Lbss(PARAMS)
        for _ in range(5):
            policy.pool(trained(b, a).export())
        policy.pool(trained(a, b).export())
        assert choice(policy) == best


def test_pooled_statistics_are_not_exported_and_are_plain_built_ins() -> None:
    policy = trained(50.0, 10.0)
    own = policy.export()
    policy.pool(trained(10.0, 50.0).export())
    assert policy.export() == own == json.loads(json.dumps(own)) != {}


def test_sums_are_by_learner_and_name() -> None:
    parts = [{"one": {"x": [1.0, 2.0]}}, {"one": {"x": [4.0, 4.0], "y": [1.0]}, "two": {}}]
    assert summed(parts) == {"one": {"x": [5.0, 6.0], "y": [1.0]}, "two": {}}
    assert parts[0]["one"]["x"] == [1.0, 2.0], "the summands are not changed"
    of_another_version = {"one": {"x": [1.0] * 3}}
    assert summed([*parts, of_another_version]) == summed(parts)

"""Which versions lanes serve: better ones by and by, worse ones not for long."""

import random

import pytest

from policies.learning.judging import ENOUGH, Agreement
from policies.learning.rollout import BASE, UNUSED, Rollout

LANES = ["a/head/0", "a/head/1", "b/head/0"]


class Traffic:
    """Requests of 60 tokens, of which each version commits so many a forward."""

    def __init__(self, rollout: Rollout, seed: int = 0) -> None:
        self.rollout = rollout
        self.random = random.Random(seed)

    def judge(self, gain: float, tenant: str = "", requests: int = ENOUGH) -> None:
        """`gain`: of the candidate over what is served."""
        for _ in range(requests):
            served = 40 + self.random.randrange(-5, 6)
            candidate = round(served / gain + self.random.gauss(0, 2))
            pair = (Agreement(60, served), Agreement(60, candidate))
            self.rollout.judged(tenant, *pair)

    def serve(self, version: int, right: float, tenant: str = "", requests: int = ENOUGH) -> None:
        """`right`: how many of the first tokens are."""
        for _ in range(requests):
            hits = sum(self.random.random() < right for _ in range(40))
            self.rollout.served(version, tenant, Agreement(hits, 40))


def with_canary(seed: int = 0) -> tuple[Rollout, Traffic]:
    rollout = Rollout(128)
    traffic = Traffic(rollout, seed)
    traffic.judge(1.2)
    assert rollout.wants_version
    rollout.begin(1)
    traffic.serve(BASE, 0.4)
    return rollout, traffic


def test_a_version_that_is_no_better_is_not_served() -> None:
    rollout = Rollout(128)
    assert rollout.versions(LANES) == dict.fromkeys(LANES, BASE)
    traffic = Traffic(rollout)
    traffic.judge(1.0)
    assert not rollout.wants_version
    traffic.judge(0.9)
    assert not rollout.wants_version
    few = Rollout(128)
    Traffic(few).judge(1.5, requests=ENOUGH - 1)
    assert not few.wants_version


@pytest.mark.parametrize("lanes", [LANES, LANES[:1]], ids=["several", "one"])
def test_a_better_one_is_served_by_one_lane_first(lanes: list[str]) -> None:
    rollout, traffic = with_canary()
    assert [*rollout.versions(lanes).values()] == [1, *[BASE] * (len(lanes) - 1)]
    traffic.serve(1, 0.45, requests=ENOUGH - 1)
    assert not rollout.decide()  # not enough is known
    traffic.serve(1, 0.45, requests=1)
    assert rollout.decide()
    assert rollout.versions(lanes) == dict.fromkeys(lanes, 1)
    assert not rollout.wants_version  # it is compared with version 1 now


def test_one_that_is_worse_as_served_is_rolled_back() -> None:
    rollout, traffic = with_canary()
    traffic.serve(1, 0.3)
    assert rollout.decide()
    assert rollout.versions(LANES) == dict.fromkeys(LANES, BASE)


def test_a_canary_that_nobody_drafts_with_gives_way_to_a_better_candidate() -> None:
    rollout, traffic = with_canary()
    traffic.judge(1.2, requests=UNUSED - 1)
    traffic.serve(1, 0.4, requests=1)
    traffic.judge(1.2, requests=UNUSED - 1)
    assert not rollout.decide()
    assert not rollout.wants_version
    traffic.judge(1.2, requests=1)
    assert rollout.wants_version
    rollout.begin(2)
    assert rollout.versions(LANES) == {LANES[0]: 2, LANES[1]: BASE, LANES[2]: BASE}
    assert not rollout.wants_version
    traffic.serve(2, 0.45)
    assert rollout.decide()
    assert rollout.serving == 2


def test_a_tenant_that_floods_neither_offers_nor_keeps_what_is_worse_for_another() -> None:
    rollout = Rollout(128)
    traffic = Traffic(rollout)
    traffic.judge(0.9, "quiet")
    traffic.judge(2.0, "flooder", requests=5000)
    assert not rollout.wants_version
    rollout.begin(1)  # as if the flood had come later
    traffic.serve(BASE, 0.4, "quiet")
    traffic.serve(BASE, 0.4, "flooder", requests=5000)
    traffic.serve(1, 0.3, "quiet")
    traffic.serve(1, 0.9, "flooder", requests=5000)
    assert rollout.decide()
    assert rollout.versions(LANES) == dict.fromkeys(LANES, BASE)


def test_more_tenants_than_can_be_told_apart_are_judged_together() -> None:
    rollout = Rollout(128)
    for tenant in range(5000):
        rollout.judged(f"{tenant}", Agreement(60, 40), Agreement(60, 30 + tenant % 5))
    assert len(rollout.window.pairs) == 50 + 128
    assert rollout.wants_version


def test_equal_versions_are_seldom_told_apart() -> None:
    offered = kept = 0
    for seed in range(200):
        rollout = Rollout(128)
        Traffic(rollout, seed).judge(1.0, requests=128)
        offered += rollout.wants_version
        rollout, traffic = with_canary(seed)
        traffic.serve(1, 0.4)
        rollout.decide()
        kept += rollout.serving == 1
    assert offered < 16
    assert kept > 180

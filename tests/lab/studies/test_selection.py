"""The comparison's arithmetic; the command itself needs the evaluation prompts."""

import pytest

from actors.coordinator.events import Verified
from benchmarks.serving.local import RequestTiming, Segment
from lab.studies.selection import report
from policies.request import RoundOutcome


def test_each_request_takes_its_fastest_arm_in_hindsight_over_the_best_for_all() -> None:
    served = {
        "lookups": [_turn(qa_s=1.0, code_s=4.0)],
        "head": [_turn(qa_s=2.0, code_s=1.0)],
        "hedge": [_turn(qa_s=1.0, code_s=2.0)],
    }
    values = {one.name: (one.value, one.ratio) for one in report("s", served, ["lookups", "head"])}

    # 20 tokens in 1 + 1 seconds; the head, the better for all, takes 3.
    assert values["s/in_hindsight/speed"] == pytest.approx((10.0, 1.5))
    assert values["s/hedge/code/speed"] == (5.0, 2.0)
    assert values["s/hedge/qa/speed"] == (10.0, 1.0)
    assert values["s/head/goodput"] == pytest.approx((20 / 3, 5 / 3))
    assert values["s/hedge/tokens_per_round"] == (3.0, None)


def _turn(qa_s: float, code_s: float) -> Segment:
    served = [RequestTiming("qa", 10, 0.1, qa_s), RequestTiming("code", 10, 0.1, code_s)]
    rounds = tuple(RoundOutcome(name, None, 2, 2, 2, 3, 0.1) for name in ("a", "b"))
    return Segment(served, qa_s + code_s, [Verified(1.0, 0.1, 0.0, 10, 6, 0, rounds)])

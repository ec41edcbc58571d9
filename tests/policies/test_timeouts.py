"""How long rounds wait for a drafter."""

import pytest

from policies.timeouts import LateCallBudget, StallTimeout


def test_a_call_may_take_a_multiple_of_what_is_usual_and_never_less_than_the_limit() -> None:
    budget = LateCallBudget(least_s=0.5)
    assert budget.wait_s(usual_s=0.001) == 0.5
    assert 2.0 < budget.wait_s(usual_s=1.0) < 5.0


def test_one_late_call_does_not_cost_a_lane_its_place() -> None:
    budget = LateCallBudget(least_s=0.5)
    budget.record(0.5, now=100.0)
    assert budget.allows_a_call(now=100.0)


def test_a_lane_that_is_always_late_takes_a_twentieth_of_the_time() -> None:
    budget = LateCallBudget(least_s=0.5)
    now = waited_s = 0.0
    while now < 1000.0:
        if budget.allows_a_call(now):
            now += 0.5
            waited_s += 0.5
            budget.record(0.5, now)
        else:
            now += 0.1
    assert 0.03 < waited_s / now < 0.07


def test_a_host_may_take_a_multiple_of_what_calls_have_lately_taken() -> None:
    timeout = StallTimeout()
    assert timeout.allowed_s(predicted_s=1.0) == 20.0, "before any call"
    for _ in range(300):
        timeout.observe(predicted_s=0.2, seconds=0.2)
    assert timeout.allowed_s(predicted_s=1.0) == 4.0
    timeout.observe(predicted_s=0.2, seconds=0.6)
    assert timeout.allowed_s(predicted_s=1.0) == pytest.approx(12.0), "the machine is slower now"


def test_the_handling_of_short_calls_is_no_sign_of_a_slow_host() -> None:
    timeout = StallTimeout()
    for _ in range(300):
        timeout.observe(predicted_s=0.001, seconds=0.02)
    assert timeout.allowed_s(predicted_s=1.0) == 4.0

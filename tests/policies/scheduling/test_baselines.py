"""The orders of FCFS, LP-SJF and LAS."""

import pytest

from policies.request import RequestView, RoundOutcome, expected_len
from policies.scheduling.baselines import Las, LasParams, fcfs, lp_sjf
from tests.policies.scheduling.server import Job, serve


def view(name: str, arrival_s: float = 0.0, **fields: object) -> RequestView:
    request = RequestView(name, arrival_s, prompt_len=10, max_tokens=100)
    for field, value in fields.items():
        setattr(request, field, value)
    return request


def test_fcfs_runs_in_the_order_of_arrival_and_never_preempts() -> None:
    jobs = [Job("a", 0.0, 30), Job("b", 0.1, 3), Job("c", 0.2, 3)]
    served = serve(fcfs(), jobs)
    assert list(served.finish_s) == ["a", "b", "c"]
    assert served.preemptions == 0


def test_lp_sjf_runs_the_shortest_prediction_next_without_preempting() -> None:
    jobs = [
        Job("running", 0.0, 20, predicted_len=20),
        Job("long", 0.1, 9, predicted_len=9),
        Job("short", 0.2, 3, predicted_len=3),
    ]
    served = serve(lp_sjf(), jobs)
    assert list(served.finish_s) == ["running", "short", "long"]
    assert served.preemptions == 0


def test_lp_sjf_takes_a_request_without_prediction_as_max_tokens_long() -> None:
    known, unknown = view("known", 1.0, predicted_len=99.0), view("unknown", 0.0)
    assert lp_sjf().pick([unknown, known], [], 2, 1.0) == ["known", "unknown"]


@pytest.mark.parametrize(
    ("generated", "expected"), [(0, 10.0), (9, 10.0), (10, 12.5), (13, 15.625), (99, 100.0)]
)
def test_an_exceeded_prediction_is_raised_up_to_max_tokens(generated: int, expected: float) -> None:
    assert expected_len(view("a", predicted_len=10.0, generated=generated)) == expected
    assert expected_len(view("a")) is None


def test_las_runs_the_least_served_request_so_a_new_one_preempts() -> None:
    jobs = [Job("long", 0.0, 100), Job("short", 3.0, 3)]
    served = serve(Las(), jobs)
    assert list(served.finish_s) == ["short", "long"]
    assert served.longest_wait_s["short"] <= served.longest_round_s


def test_las_alternates_between_equals_once_per_quantum() -> None:
    jobs = [Job("a", 0.0, 60), Job("b", 0.0, 60)]  # 60 rounds of 70 ms each
    assert serve(Las(LasParams(quantum_s=0.7)), jobs).preemptions <= 12


def test_las_drops_the_state_of_a_forgotten_request() -> None:
    schedule = Las()
    schedule.arrive(view("a"), 0.0)
    schedule.observe([RoundOutcome("a", None, 0, 0, 0, 1, seconds=9.0)], 9.0)
    schedule.forget("a")
    schedule.observe([RoundOutcome("a", None, 0, 0, 0, 1, seconds=9.0)], 18.0)  # a late verdict
    schedule.arrive(view("a", 20.0), 20.0)
    schedule.arrive(view("b", 19.0), 20.0)
    schedule.observe([RoundOutcome("b", None, 0, 0, 0, 1, seconds=1.0)], 21.0)
    assert schedule.pick([view("a", 20.0), view("b", 19.0)], [], 1, 21.0) == ["a"]

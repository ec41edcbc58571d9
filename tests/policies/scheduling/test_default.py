"""Our default schedule: SLO slack before time left, FCFS while nothing is predicted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.baselines.scheduling import lp_sjf
from policies.request import RequestView, RoundOutcome, Slo, expected_len
from policies.scheduling.default import DefaultSchedule
from policies.scheduling.fcfs import fcfs
from tests.policies.scheduling.server import Job, Served, serve
from tests.policies.scheduling.workload import mixed_jobs, view


def order(now: float, *requests: RequestView, running: tuple[str, ...] = ()) -> list[str]:
    schedule = DefaultSchedule()
    for request in requests:
        schedule.arrive(request, request.arrival_s)
    return schedule.pick(requests, running, len(requests), now)


def test_fcfs_runs_in_the_order_of_arrival_and_never_preempts() -> None:
    jobs = [Job("a", 0.0, 30), Job("b", 0.1, 3), Job("c", 0.2, 3)]
    served = serve(fcfs(), jobs)
    assert list(served.finish_s) == ["a", "b", "c"]
    assert served.preemptions == 0


@pytest.mark.parametrize(
    ("generated", "expected"), [(0, 10.0), (9, 10.0), (10, 12.5), (13, 15.625), (99, 100.0)]
)
def test_an_exceeded_prediction_is_raised_up_to_max_tokens(generated: int, expected: float) -> None:
    assert (
        expected_len(view("a", predicted_len=10.0, generated=generated, max_tokens=100)) == expected
    )
    assert expected_len(view("a")) is None


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_without_predictions_and_slos_it_is_fcfs(
    arrivals: list[tuple[float, int]], slots: int
) -> None:
    jobs = [Job(f"{i:02}", arrival, tokens) for i, (arrival, tokens) in enumerate(arrivals)]
    assert serve(DefaultSchedule(), jobs, slots).ran == serve(fcfs(), jobs, slots).ran


def test_requests_run_by_time_left_not_by_total_length() -> None:
    nearly = view("nearly", predicted_len=100.0, generated=90)
    assert order(0.0, view("short", predicted_len=20.0), nearly) == ["nearly", "short"]


def test_a_request_without_prediction_is_placed_at_the_median_of_the_others() -> None:
    short, long = view("short", 1.0, predicted_len=10.0), view("long", 0.0, predicted_len=90.0)
    assert order(2.0, long, short, view("unknown", 3.0)) == ["short", "unknown", "long"]


def test_seconds_per_token_count_as_well_as_length() -> None:
    """LAPS-SD's point (Fig. 1): the shorter output may take longer, at a low acceptance."""
    fast, slow = view("fast", predicted_len=60.0), view("slow", predicted_len=50.0)
    schedule = DefaultSchedule()
    for request in (fast, slow):
        schedule.arrive(request, 0.0)
        for _ in range(10):
            committed = 5 if request is fast else 1
            outcome = RoundOutcome(request.name, "a", 4, 4, committed - 1, committed, seconds=0.1)
            schedule.observe([outcome], 0.0)
    assert schedule.pick([slow, fast], [], 2, 1.0) == ["fast", "slow"]


@pytest.mark.parametrize(("length", "first"), [(12.0, "running"), (8.0, "new")])
def test_a_running_request_is_preempted_only_for_a_clearly_shorter_one(
    length: float, first: str
) -> None:
    running = view("running", predicted_len=20.0)  # 1 s left, less the 0.5 s that hold it
    new = view("new", 1.0, predicted_len=length)
    assert order(1.0, running, new, running=("running",))[0] == first


def test_a_request_about_to_miss_its_ttft_runs_before_the_shortest() -> None:
    urgent = view("urgent", 0.0, slo=Slo(ttft_s=1.0), predicted_len=500.0)
    short = view("short", 0.0, predicted_len=1.0)
    assert order(0.5, short, urgent)[0] == "short"
    assert order(0.9, short, urgent)[0] == "urgent"


def test_a_request_that_has_missed_its_slo_does_not_displace_one_that_can_meet_it() -> None:
    lost = view("lost", 0.0, slo=Slo(ttft_s=1.0), predicted_len=500.0)
    kept = view("kept", 0.4, slo=Slo(ttft_s=1.0), predicted_len=500.0)
    assert order(1.3, lost, kept)[0] == "kept"


def test_slack_after_the_first_token_is_the_allowed_time_less_that_at_its_own_pace() -> None:
    """At 0.05 s a token, 50 more take 2.5 s; the TPOT allows 0.15 s each."""
    slo = Slo(tpot_s=0.15)
    answer = view("answer", slo=slo, first_token_s=10.0, generated=51, predicted_len=101.0)
    short = view("short", predicted_len=1.0)
    due_s = 10.0 + 0.15 * 100
    assert order(due_s - 2.5 - 0.3, short, answer)[0] == "short"
    assert order(due_s - 2.5 - 0.1, short, answer)[0] == "answer"
    assert order(due_s - 2.5 + 0.1, short, answer)[0] == "short"


def attained_slos(served: Served, jobs: list[Job]) -> int:
    kept = 0
    for job in jobs:
        first_s, finish_s = served.first_token_s[job.name], served.finish_s[job.name]
        assert job.slo.ttft_s is not None
        assert job.slo.tpot_s is not None
        kept += (
            first_s - job.arrival_s <= job.slo.ttft_s
            and (finish_s - first_s) / (job.tokens - 1) <= job.slo.tpot_s
        )
    return kept


def test_under_overload_more_slos_are_attained_than_by_order_of_arrival() -> None:
    """FCFS serves late requests first and so makes all of them late."""
    slo = Slo(ttft_s=2.0, tpot_s=0.15)
    jobs = [Job(f"{i:02}", 1.0 * i, 20, predicted_len=20, slo=slo) for i in range(40)]  # load 1.4
    ours = attained_slos(serve(DefaultSchedule(), jobs), jobs)
    assert ours > 1.5 * attained_slos(serve(fcfs(), jobs), jobs)


@pytest.mark.parametrize("seed", range(3))
def test_mean_latency_is_below_fcfs_and_lp_sjf(seed: int) -> None:
    jobs = mixed_jobs(seed, 80, rate=2.0, length_error=0.4)
    ours = serve(DefaultSchedule(), jobs, slots=4, switch_s=0.02).mean_latency_s(jobs)
    assert ours < serve(fcfs(), jobs, slots=4).mean_latency_s(jobs)
    assert ours < serve(lp_sjf(), jobs, slots=4).mean_latency_s(jobs)

"""Priorities, tenants and the bound on waiting, around every schedule."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.baselines.scheduling import Las, lp_sjf
from policies.catalogue import SCHEDULES, make_schedule
from policies.protocols import Schedule
from policies.request import RoundOutcome, Slo
from policies.scheduling import fairness
from policies.scheduling.default import DefaultSchedule
from policies.scheduling.fairness import FairnessParams, FairSchedule
from policies.scheduling.fcfs import fcfs
from policies.scheduling.laps_sd import LapsSd
from tests.policies.scheduling.server import Job, Served, serve
from tests.policies.scheduling.workload import view

each_schedule = pytest.mark.parametrize(
    "make", [partial(make_schedule, name) for name in SCHEDULES], ids=SCHEDULES
)


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    """Jobs with any priorities, tenants, SLOs and predictions."""
    unnamed = st.builds(
        Job,
        name=st.just(""),
        arrival_s=st.floats(0, 4),
        tokens=st.integers(1, 40),
        predicted_len=st.none() | st.floats(1, 60),
        acceptance=st.sampled_from([0.0, 0.5, 0.95]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from("xyz"),
        slo=st.sampled_from([Slo(), Slo(ttft_s=0.3, tpot_s=0.08)]),
    )
    jobs = draw(st.lists(unnamed, min_size=1, max_size=14))
    return [replace(job, name=f"{index:02}") for index, job in enumerate(jobs)]


def bound_s(params: FairnessParams, served: Served, slots: int) -> float:
    """The bound in the docstring of policies.scheduling.fairness."""
    gap_s = served.longest_round_s
    turn_s = fairness.TURN_S / (fairness.TURN_SHARE * slots) + 2 * gap_s
    return params.starve_after_s + 2 * gap_s + served.most_live * turn_s


# The bound on waiting


@each_schedule
@settings(deadline=None, derandomize=True)
@given(jobs=job_lists(), slots=st.integers(1, 5), share=st.sampled_from([0.25, 0.5, 1.0]))
def test_no_request_waits_beyond_the_bound(
    make: Callable[[], Schedule], jobs: list[Job], slots: int, share: float
) -> None:
    params = FairnessParams(starve_after_s=0.5)
    with patch.multiple(fairness, TURN_S=0.2, TURN_SHARE=share, TENANT_SLACK_S=0.3):
        served = serve(FairSchedule(make(), params), jobs, slots, switch_s=0.01)
        assert max(served.longest_wait_s.values()) <= bound_s(params, served, slots) + 1e-9


def continuous_short_jobs(long_job: Job) -> list[Job]:
    """For a minute a job every 0.2 s, each of which takes 0.21 s (3 rounds), so they leave no
    gap."""
    return [long_job, *(Job(f"s{i:03}", 0.2 * i, 3, predicted_len=3) for i in range(300))]


@pytest.mark.parametrize("make", [lp_sjf, Las, LapsSd, DefaultSchedule])
def test_a_job_that_starves_under_a_schedule_does_not_in_fair_schedule(
    make: Callable[[], Schedule],
) -> None:
    long_job = Job("long_job", 0.1, 100, predicted_len=100)
    params = FairnessParams(starve_after_s=2.0)
    alone = serve(make(), continuous_short_jobs(long_job))
    inside = serve(FairSchedule(make(), params), continuous_short_jobs(long_job))
    assert alone.longest_wait_s["long_job"] > 30
    assert inside.longest_wait_s["long_job"] <= bound_s(params, inside, 1)
    assert inside.longest_wait_s["long_job"] < 24


@pytest.mark.parametrize("at_s", [1.0, 40.0])
def test_a_few_tokens_do_not_wait_as_long_as_the_same_clients_long_outputs(at_s: float) -> None:
    held = [Job(f"l{i:02}", 0.0, 400) for i in range(48)]
    served = serve(FairSchedule(fcfs()), [*held, Job("few", at_s, 2)], 16, verify_s=0.16)
    assert served.finish_s["few"] - at_s < 12, "with 30 tokens it waits for 30 s and more"


def test_turns_take_only_their_share_of_the_slots() -> None:
    """Under overload all requests starve, and the inner schedule decides nine slots of ten."""
    schedule = FairSchedule(lp_sjf(), FairnessParams(starve_after_s=1.0))
    requests = [view(f"{i}", predicted_len=100.0 - i) for i in range(10)]
    for each in requests:
        schedule.arrive(each, 0.0)
    for now in (0.0, 0.99):
        assert schedule.pick(requests, [], 4, now) == ["9", "8", "7", "6"]
    running = schedule.pick(requests, [], 4, 1.0)
    assert running == ["0", "9", "8", "7"]
    # A turn lasts for a second, and one in 2.5 s is a tenth of four slots.
    for now, turns in ((1.4, ["0"]), (2.3, ["0"]), (3.6, ["1"])):
        running = schedule.pick(requests, running, 4, now)
        assert running[: len(turns)] == turns
        assert set(running[len(turns) :]) <= {"9", "8", "7", "0"}, "lp_sjf preempts none"


def test_a_request_held_back_by_the_coordinator_does_not_count_as_waiting() -> None:
    """The coordinator holds it back while its client reads slowly; that time earns no turn."""
    schedule = FairSchedule(lp_sjf(), FairnessParams(starve_after_s=1.0))
    paused, other = view("paused", predicted_len=9.0), view("other", predicted_len=1.0)
    for each in (paused, other):
        schedule.arrive(each, 0.0)
    schedule.pick([paused, other], ["other"], 1, 0.0)
    schedule.pick([other], ["other"], 1, 5.0)
    assert schedule.pick([paused, other], ["other"], 1, 9.0) == ["other"]
    assert schedule.pick([paused, other], ["other"], 1, 10.0) == ["paused"]


# Priorities and tenants


@each_schedule
@settings(deadline=None, derandomize=True)
@given(requests=st.lists(st.tuples(st.integers(0, 2), st.floats(1, 50)), max_size=10))
def test_higher_priorities_go_first_and_each_keeps_the_inner_order(
    make: Callable[[], Schedule], requests: list[tuple[int, float]]
) -> None:
    views = [
        view(f"{i}", priority=priority, predicted_len=length)
        for i, (priority, length) in enumerate(requests)
    ]
    inner, outer = make(), FairSchedule(make())
    for each in views:
        inner.arrive(each, 0.0)
        outer.arrive(each, 0.0)
    alone = inner.pick(views, [], len(views), 0.0)
    priorities = {each.name: -each.priority for each in views}
    assert outer.pick(views, [], len(views), 0.0) == sorted(alone, key=priorities.__getitem__)


@each_schedule
def test_two_tenants_get_equal_slots_however_many_requests_each_has(
    make: Callable[[], Schedule],
) -> None:
    crowd = [Job(f"c{i:02}", 0.0, 100, 100.0, tenant="crowd") for i in range(30)]
    few = [Job(f"f{i}", 1.0, 100, 100.0, tenant="few") for i in range(4)]
    served = serve(FairSchedule(make(), FairnessParams(starve_after_s=math.inf)), crowd + few, 4)
    last = max(served.finish_s[job.name] for job in few)
    shares = Counter(
        name[0] for index, ran in enumerate(served.ran) if 0.07 * index <= last for name in ran
    )
    # Alone in the first second, then half of the four slots each.
    assert 0.4 <= shares["f"] / shares.total() <= 0.55


def test_a_tenant_that_lacked_nothing_cannot_stop_one_that_used_the_rest() -> None:
    """For an hour the modest one has a single request, which always runs; then it floods."""
    schedule = FairSchedule(fcfs(), FairnessParams(starve_after_s=math.inf))
    requests = [view(f"busy{i:02}", tenant="busy") for i in range(30)]
    requests.append(view("modest", tenant="modest"))
    now, running = 0.0, list[str]()

    def serve_for(seconds: int) -> Counter[str]:
        nonlocal now, running
        slots = Counter[str]()
        for _ in range(seconds):
            running = schedule.pick(requests, running, 16, now)
            slots.update(name[:4] for name in running)
            now += 1.0
            ran = [RoundOutcome(name, None, 0, 0, 0, 1, seconds=1.0) for name in running]
            schedule.observe(ran, now)
        return slots

    for each in requests:
        schedule.arrive(each, now)
    assert serve_for(3600)["mode"] == 3600
    flood = [view(f"mode{i:02}", now, tenant="modest") for i in range(60)]
    for each in flood:
        schedule.arrive(each, now)
    requests += flood
    assert serve_for(60)["busy"] > 0.4 * 16 * 60


def test_requests_that_are_cancelled_before_their_first_token_cost_their_tenant_slot_time() -> None:
    schedule = FairSchedule(fcfs(), FairnessParams(starve_after_s=math.inf))
    honest = [view(f"a{i}", tenant="a") for i in range(2)]
    others = [view(f"b{i}", tenant="b") for i in range(4)]
    for each in (*honest, *others):
        schedule.arrive(each, 0.0)
    running, ran = list[str](), Counter[str]()
    for second in range(200):
        now = float(second)
        running = schedule.pick([*honest, *others], running, 2, now)
        ran.update(name[0] for name in running)
        now += 1.0
        mine = [name for name in running if name[0] == "a"]
        outcomes = [RoundOutcome(name, None, 0, 0, 0, 1, seconds=1.0) for name in mine]
        schedule.observe(outcomes, now)
        if second % 3 == 2:  # all that run are cancelled, and others come in their place
            for each in [one for one in others if one.name in running]:
                schedule.forget(each.name)
                others.remove(each)
                running.remove(each.name)
                others.append(view(f"b{second}{each.name}", now, tenant="b"))
                schedule.arrive(others[-1], now)
    assert ran["a"] > 0.4 * ran.total()


def test_no_tenant_stops_others_by_an_slo_out_of_reach() -> None:
    schedule = FairSchedule(fcfs())
    late = view("late", tenant="a", slo=Slo(tpot_s=1e-6))
    others = [view(f"b{i}", 1.0, tenant="b") for i in range(3)]
    for each in (late, *others):
        schedule.arrive(each, 1.0)
    late.first_token_s, late.generated = 0.1, 5
    assert schedule.pick([late, *others], ["late"], 16, 1.0) == ["late", "b0", "b1", "b2"]
    assert schedule.pick([late, *others], ["late"], 4, 1.0) == ["late", "b0", "b1"]


def test_a_returning_tenant_starts_level_with_the_least_served() -> None:
    """Neither its absence nor its past service counts: tenants without requests are forgotten."""
    schedule = FairSchedule(fcfs())
    busy, guest = view("busy", tenant="busy"), view("guest", 1.0, tenant="guest")
    schedule.arrive(busy, 0.0)
    schedule.observe([RoundOutcome("busy", None, 0, 0, 0, 1, seconds=100.0)], 100.0)
    schedule.arrive(guest, 100.0)
    assert schedule.pick([busy, guest], [], 2, 100.0) == ["busy", "guest"]
    schedule.observe([RoundOutcome("guest", None, 0, 0, 0, 1, seconds=90.0)], 100.0)
    schedule.forget("guest")
    schedule.arrive(guest, 101.0)
    schedule.observe([RoundOutcome("busy", None, 0, 0, 0, 1, seconds=1.0)], 101.0)
    assert schedule.pick([busy, guest], [], 2, 101.0) == ["guest", "busy"]


@each_schedule
def test_the_inner_schedule_gets_every_event(make: Callable[[], Schedule]) -> None:
    """With one priority, one tenant and no turns it decides as the inner schedule alone does."""
    jobs = [
        Job(f"{i:02}", 0.3 * i, 10 + 7 * (i % 5), float(10 + 7 * (i % 5)), 0.5) for i in range(20)
    ]
    wrapped = FairSchedule(make(), FairnessParams(starve_after_s=math.inf))
    assert serve(wrapped, jobs, 2).ran == serve(make(), jobs, 2).ran

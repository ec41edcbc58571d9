"""LAPS-SD against section 4 of its paper, and our readings of it (docs/policies/scheduling.md)."""

from collections.abc import Callable, Sequence

import pytest

from lab.baselines.scheduling import Las, lp_sjf
from policies.cost import NO_SWITCH, SwitchCost
from policies.request import RequestView, RoundOutcome
from policies.scheduling.laps_sd import LapsSd, LapsSdParams
from tests.policies.scheduling.server import serve
from tests.policies.scheduling.workload import mixed_jobs

STABLE = LapsSdParams(first_queue_s=1.0, stable_rounds=2, stable_within=0.5)
"""Perceptible after two rounds with drafts, whatever they accept."""


def view(name: str, arrival_s: float = 0.0, predicted_len: float | None = 100.0) -> RequestView:
    return RequestView(name, arrival_s, prompt_len=10, max_tokens=1000, predicted_len=predicted_len)


def outcome(
    request: str, drafted: int = 4, accepted: int = 2, seconds: float = 0.1, depth: int = 4
) -> RoundOutcome:
    return RoundOutcome(
        request,
        lane="a",
        drafted=drafted,
        depth=depth,
        accepted=accepted,
        committed=accepted + 1,
        seconds=seconds,
        verify_s=0.06,
        draft_s=0.01 * depth,
    )


def schedule_of(
    params: LapsSdParams, requests: Sequence[RequestView], switch: SwitchCost = NO_SWITCH
) -> LapsSd:
    schedule = LapsSd(params, switch)
    for request in requests:
        schedule.arrive(request, request.arrival_s)
    return schedule


# The four lifecycle events (section 4.2)


def test_slot_time_demotes_through_queues_of_growing_range() -> None:
    params = LapsSdParams(queues=3, first_queue_s=1.0, growth=2.0, stable_rounds=1000)
    schedule = schedule_of(params, [view("a")])
    queues = []
    for _ in range(12):
        schedule.observe([outcome("a", seconds=0.5)], 0.0)
        queues.append(schedule.queue("a"))
    # Up to S_1 = 1 s in the first, up to S_2 = 2 s in the second, the last one has no end.
    assert queues == [0, 0, 1, 1, *[2] * 8]


def test_a_request_is_stable_when_its_cumulative_rate_is_stable_over_gamma_rounds() -> None:
    params = LapsSdParams(stable_rounds=3, stable_within=0.1)
    schedule = schedule_of(params, [view("a")])
    cumulative = []
    accepted = drafted = 0
    for round_accepted in (4, 0, 2, 2, 3, 2, 2):
        schedule.observe([outcome("a", accepted=round_accepted)], 0.0)
        accepted, drafted = accepted + round_accepted, drafted + 4
        cumulative.append(accepted / drafted)
        still = len(cumulative) >= 3 and max(cumulative[-3:]) - min(cumulative[-3:]) < 0.1
        assert (schedule.estimated_s("a") is not None) == still
    assert still


# Estimation (section 4.3)


def test_estimate_is_equation_6_for_a_fixed_chain_without_the_round_that_reads_the_prompt() -> None:
    schedule = schedule_of(STABLE, [view("a", predicted_len=100.0)])
    schedule.observe([outcome("a", drafted=0, accepted=0)._replace(verify_s=9.0)], 0.0)
    for _ in range(2):
        schedule.observe([outcome("a", drafted=4, accepted=2)], 0.0)
    n, length, acceptance, t_ssm, t_llm = 4, 100.0, 0.5, 0.01, 0.06
    rounds = length / (n * acceptance + 1)
    assert schedule.estimated_s("a") == pytest.approx(rounds * (n * t_ssm + t_llm))


def test_without_a_length_prediction_a_request_stays_non_perceptible() -> None:
    request = view("a", predicted_len=None)
    schedule = schedule_of(STABLE, [request])
    for _ in range(5):
        schedule.observe([outcome("a")], 0.0)
    assert schedule.estimated_s("a") is None
    request.predicted_len = 100.0
    schedule.observe([outcome("a")], 0.0)
    assert schedule.estimated_s("a") is not None


# The order (section 4.3, "Multi-state scheduling")


def test_a_request_that_becomes_stable_moves_to_the_queue_of_its_estimate_and_stays_there() -> None:
    params = LapsSdParams(
        queues=4, first_queue_s=0.5, growth=4.0, stable_rounds=2, stable_within=0.5
    )
    schedule = schedule_of(params, [view("short", predicted_len=9.0), view("long")])
    for _ in range(2):
        schedule.observe([outcome("short", seconds=0.1)], 0.0)
        schedule.observe([outcome("long", seconds=0.1)], 0.0)
    assert schedule.queue("short") == 0  # 0.3 s
    assert schedule.queue("long") == 2  # 3.3 s, between 2 s and 8 s
    for _ in range(20):
        schedule.observe([outcome("short", seconds=1.0)], 0.0)
    assert schedule.queue("short") == 0


def test_in_a_queue_perceptible_requests_run_first_by_sjf_then_the_others_by_arrival() -> None:
    requests = [
        view("late", 3.0),
        view("early", 1.0),
        view("longer", 2.0, predicted_len=20.0),
        view("shorter", 4.0, predicted_len=10.0),
    ]
    schedule = schedule_of(STABLE, requests)
    for name in ("longer", "shorter"):
        for _ in range(2):
            schedule.observe([outcome(name)], 0.0)
    assert [schedule.queue(request.name) for request in requests] == [0, 0, 0, 0]
    assert schedule.pick(requests, [], 4, 5.0) == ["shorter", "longer", "early", "late"]


def test_a_running_perceptible_request_is_not_preempted_even_by_the_first_queue() -> None:
    stable, new = view("stable", 0.0, predicted_len=1000.0), view("new", 5.0)
    schedule = schedule_of(STABLE, [stable])
    for _ in range(2):
        schedule.observe([outcome("stable")], 5.0)
    assert schedule.pick([stable], ["stable"], 1, 5.0) == ["stable"]
    schedule.arrive(new, 5.1)
    assert schedule.queue("stable") > schedule.queue("new")
    assert schedule.pick([stable, new], ["stable"], 1, 5.1) == ["stable"]
    assert schedule.pick([stable, new], [], 1, 5.1) == ["new"]


def test_a_switch_that_costs_more_than_the_rest_of_the_range_is_not_made() -> None:
    """Ours, not the paper's: the request is demoted soon anyway and then preempted."""
    requests = [view("old", 0.0), view("new", 5.0)]
    params = LapsSdParams(queues=3, first_queue_s=1.0, growth=2.0, stable_rounds=1000)
    switch = SwitchCost(fixed_s=0.1, per_token_s=0.01)  # 0.2 s for `old`
    schedule = schedule_of(params, requests, switch)
    schedule.observe([outcome("old", seconds=1.7)], 5.0)  # 0.3 s left of the second queue
    assert schedule.pick(requests, ["old"], 1, 5.0) == ["new"]
    schedule.observe([outcome("old", seconds=0.2)], 5.2)
    assert schedule.pick(requests, ["old"], 1, 5.2) == ["old"]
    schedule.observe([outcome("old", seconds=0.2)], 5.4)  # the last queue has no end
    assert schedule.pick(requests, ["old"], 1, 5.4) == ["new"]


# Latency (Fig. 5)


def test_mean_latency_is_below_lp_sjf_and_las_when_acceptance_differs() -> None:
    """Fig. 5 in sign, on requests whose lengths are known and whose acceptance is not."""
    jobs = mixed_jobs(seed=0, count=60, rate=0.6, length_error=0.0)
    ours = serve(LapsSd(), jobs, switch_s=0.05).mean_latency_s(jobs)
    assert ours < serve(lp_sjf(), jobs, switch_s=0.05).mean_latency_s(jobs)
    assert ours < serve(Las(), jobs, switch_s=0.05).mean_latency_s(jobs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LapsSdParams(queues=0),
        lambda: LapsSdParams(growth=1.0),
        lambda: LapsSdParams(first_queue_s=0.0),
        lambda: LapsSdParams(stable_rounds=1),
    ],
)
def test_parameters_without_meaning_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="at least"):
        make()

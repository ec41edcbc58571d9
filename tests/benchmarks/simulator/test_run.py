"""Whole runs of the real coordinator in virtual time."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from actors.coordinator.events import CaughtUp, Event, Left, Preempted, Verified
from actors.coordinator.settings import Limits, Policies
from benchmarks.simulator.acceptance import Acceptance, DrafterModel, synthetic
from benchmarks.simulator.device import Faults
from benchmarks.simulator.report import Report
from benchmarks.simulator.run import Cluster, DrafterSpec, OwnTime, WrongOutput, simulate
from benchmarks.simulator.scripts import TargetScript
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival, Lengths, draw, poisson, specserve_slo
from policies.catalogue import Calibrations
from policies.cost import LinearCost, RooflineCost
from policies.microbatch import MicroBatchParams
from policies.request import RequestView, Slo
from tests.benchmarks.simulator.standins import ArrivalOrder, policies

VERIFY = RooflineCost(alpha=1e-7, gamma=1e-5, delta=0.02, knee=64, gamma_more=2e-4)
DRAFT = LinearCost(alpha=1e-8, gamma=1e-6, delta=0.001)
LIMITS = Limits(max_batch=8, max_waiting=1000, kv_tokens=100_000)
ONE_BATCH = MicroBatchParams(max_parts=1)
LENGTHS = Lengths(prompt_mean=64, output_mean=40, longest=256)
ACCEPTANCE = Acceptance(
    {("", name): synthetic(mean) for name, mean in (("small", 0.6), ("large", 0.8), ("ngram", 0.3))}
)


def cluster(*drafters: str) -> Cluster:
    """Lanes of these drafters; `ngram` costs nothing."""
    specs = [DrafterSpec(name, name, None if name == "ngram" else DRAFT) for name in drafters]
    return Cluster(VERIFY, KvMemory(100_000), specs, ACCEPTANCE)


def workload(count: int = 40, rate: float = 6.0) -> list[Arrival]:
    return draw(poisson(rate, count, 0), 0, LENGTHS)


def events_of_a_run() -> str:
    events: list[Event] = []
    lanes = cluster("small", "large", "ngram")
    simulate(workload(), lanes, policies(period=40), LIMITS, seed=3, observe=events.append)
    return hashlib.sha256(repr(events).encode()).hexdigest()


def test_a_run_repeats_to_its_last_event_in_any_process() -> None:
    here = events_of_a_run()
    assert here == events_of_a_run()
    script = f"from {__name__} import events_of_a_run; print(events_of_a_run())"
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == here


def test_a_lone_drafter_reads_ahead_also_while_it_is_not_let_draft() -> None:
    """Else it falls behind, and to begin would cost the more, the longer nobody did; and what it
    reads shows the speculation policy when it should."""
    events: list[Event] = []
    learned: list[tuple[str, int]] = []

    def make(calibrations: Calibrations) -> Policies:
        made = policies(depth=0)(calibrations)

        def note(request: str, lane: str, matched: Sequence[bool], covered: Sequence[bool]) -> None:
            learned.append((lane, len(matched)))

        made.speculation.observe_read = note  # type: ignore[method-assign]
        return made

    requests = workload()
    simulate(requests, cluster("small"), make, LIMITS, observe=events.append)
    read = sum(event.tokens for event in events if isinstance(event, CaughtUp))
    assert read > sum(one.prompt_tokens for one in requests) / 2
    assert sum(tokens for lane, tokens in learned if lane == "small") > 100


def test_another_seed_is_another_run() -> None:
    def latency(seed: int) -> float:
        return simulate(workload(), cluster("small"), policies(), LIMITS, seed=seed).mean_latency_s

    assert latency(1) != latency(2)


def test_plain_decoding_alone_takes_what_the_cost_model_says() -> None:
    request = Arrival("r0", 0.5, prompt_tokens=100, output_tokens=5, max_tokens=50)
    report = simulate([request], cluster(), policies(), LIMITS)
    (served,) = report.served
    prefill = VERIFY.predict(0, 100)
    decode = sum(VERIFY.predict(100 + i, 1) for i in range(4))
    assert served.ttft_s == pytest.approx(prefill)
    assert served.latency_s == pytest.approx(prefill + decode)
    assert served.tpot_s == pytest.approx(decode / 4)


def test_the_coordinators_own_time_comes_behind_each_forward() -> None:
    request = Arrival("r0", 0.0, prompt_tokens=100, output_tokens=40, max_tokens=50)
    own = OwnTime(round_s=0.003, drafting_s=0.002)
    plain = simulate([request], replace(cluster(), own=own), policies(), LIMITS)
    without = simulate([request], cluster(), policies(), LIMITS)
    assert plain.served[0].latency_s == pytest.approx(without.served[0].latency_s + 40 * 0.003)

    idle: list[float] = []
    drafted: list[bool] = []

    def watch(event: Event) -> None:
        if isinstance(event, Verified):
            idle.append(event.idle_s - max(one.draft_s for one in event.outcomes))
            drafted.append(any(one.tried for one in event.outcomes))

    simulate([request], replace(cluster("small"), own=own), policies(), LIMITS, observe=watch)
    assert any(drafted)
    assert idle[1:] == pytest.approx([0.005 if one else 0.003 for one in drafted[:-1]])


def test_calls_scatter_around_what_they_take_and_by_the_seed() -> None:
    requests = [Arrival(f"r{n}", 0.0, 100, output_tokens=400, max_tokens=500) for n in range(4)]

    def seconds(scatters: bool, seed: int) -> float:
        machine = replace(cluster(), transport_s=0.05, scatters=scatters)
        return simulate(requests, machine, policies(), LIMITS, seed=seed).duration_s

    assert seconds(True, 1) == seconds(True, 1) != seconds(True, 2)
    assert seconds(True, 1) == pytest.approx(seconds(False, 1), rel=0.15)


def test_a_request_ends_at_the_targets_stop_or_at_what_it_allows() -> None:
    stops = Arrival("r0", 0.0, prompt_tokens=4, output_tokens=7, max_tokens=50)
    cut = Arrival("r1", 0.0, prompt_tokens=4, output_tokens=70, max_tokens=50)
    ends: dict[str, tuple[int, str | None]] = {}

    def observe(event: Event) -> None:
        if isinstance(event, Left):
            ends[event.view.name] = (event.view.generated, event.finish)

    simulate([stops, cut], cluster("small"), policies(), LIMITS, observe=observe)
    assert ends == {"r0": (7, "stop"), "r1": (50, "length")}


def test_a_better_drafter_serves_faster_and_all_beat_plain_decoding() -> None:
    def latency(*drafters: str) -> float:
        return simulate(workload(), cluster(*drafters), policies(), LIMITS).mean_latency_s

    plain, small, large = latency(), latency("small"), latency("large")
    assert large < small < 0.7 * plain


def test_tokens_per_round_are_what_a_perfect_drafter_earns() -> None:
    perfect = Acceptance({("", "small"): DrafterModel((1.0, 1.0), (1.0, 1.0))})
    request = Arrival("r0", 0.0, prompt_tokens=8, output_tokens=101, max_tokens=101)
    lanes = replace(cluster("small"), acceptance=perfect)
    report = simulate([request], lanes, policies(depth=4), LIMITS, pipeline=ONE_BATCH)
    assert report.acceptance == 1.0
    # The prompt's forward says one token, each of 20 rounds 4 + 1.
    assert report.tally.request_rounds == 21


def test_every_policy_meets_the_same_draws() -> None:
    """What is accepted of a chain is a function of where it begins, not of how it was scheduled."""

    def accepted(depth: int, max_batch: int) -> dict[tuple[str, int], int]:
        at: dict[str, int] = {}
        found: dict[tuple[str, int], int] = {}

        def observe(event: Event) -> None:
            if isinstance(event, Verified):
                for one in event.outcomes:
                    if one.drafted == depth:
                        found[one.request, at.get(one.request, 0)] = one.accepted
                    at[one.request] = at.get(one.request, 0) + one.committed

        limits = replace(LIMITS, max_batch=max_batch)
        simulate(workload(30), cluster("small"), policies(depth), limits, observe=observe)
        return found

    wide, narrow, deep = accepted(2, 8), accepted(2, 3), accepted(5, 8)
    assert len(wide) > 200
    assert wide == narrow
    both = wide.keys() & deep.keys()
    assert len(both) > 50
    assert all(wide[start] == min(2, deep[start]) for start in both)


def test_a_host_that_dies_costs_time_and_no_token() -> None:
    """simulate() itself compares every output with the target's."""

    whole = cluster("small", "large")

    def served(lanes: Cluster) -> Report:
        return simulate(workload(), lanes, policies(), LIMITS)

    report = served(whole)
    faulty = [
        DrafterSpec("small", "small", DRAFT, faults=Faults((1.0, 4.0), 2.0)),
        DrafterSpec("large", "large", DRAFT),
    ]
    without_drafter = served(replace(whole, drafters=faulty))
    without_verifier = served(replace(whole, verifier_faults=Faults((2.0, 2.5, 6.0), 1.0)))
    assert len(without_drafter.served) == len(without_verifier.served) == len(report.served)
    assert without_verifier.mean_latency_s > report.mean_latency_s + 0.3


def test_scarce_kv_preempts_or_waits_and_loses_nothing() -> None:
    for swap_s_per_token in (1e-5, None):
        memory = KvMemory(768, swap_s_per_token)
        limits = replace(LIMITS, kv_tokens=768)
        arrivals = workload(40, rate=20.0)
        scarce = simulate(arrivals, replace(cluster("small"), memory=memory), policies(), limits)
        ample = simulate(arrivals, cluster("small"), policies(), LIMITS)
        assert len(scarce.served) == 40
        assert scarce.mean_latency_s > ample.mean_latency_s


def test_free_drafters_add_to_the_trees_of_costly_ones() -> None:
    alone = simulate(workload(), cluster("small"), policies(), LIMITS)
    joined = simulate(workload(), cluster("small", "ngram"), policies(), LIMITS)
    assert joined.tokens_per_round > alone.tokens_per_round


def test_a_full_waiting_room_refuses_and_counts() -> None:
    limits = replace(LIMITS, max_batch=2, max_waiting=3)
    report = simulate(workload(30, rate=1000.0), cluster("small"), policies(), limits)
    assert report.refused > 10
    assert len(report.served) + report.refused == 30
    assert report.attainment < 1


def test_slos_are_judged_by_request() -> None:
    easy = [replace(one, slo=Slo(tpot_s=10.0)) for one in workload()]
    tight = specserve_slo(workload(rate=30.0), scale=0.8)
    assert simulate(easy, cluster("small"), policies(), LIMITS).attainment == 1.0
    report = simulate(tight, cluster("small"), policies(), LIMITS)
    assert 0 < report.attainment < 1
    assert report.goodput == pytest.approx(
        sum(one.tokens for one in report.served if one.meets_slo) / report.duration_s
    )


def test_a_late_switch_is_late_and_catching_up_is_not() -> None:
    """Requests that change lanes are caught up on; in idle time where the lane has any."""
    report = simulate(workload(), cluster("small", "large"), policies(period=30), LIMITS)
    assert report.tally.switches > 10
    assert report.tally.idle_tokens > 0


def test_preemptions_are_seen() -> None:
    """A stand-in schedule that turns its order around at every pick."""

    class TurnAround(ArrivalOrder):
        def pick(
            self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
        ) -> list[str]:
            return [view.name for view in requests][::-1][:slots]

    events: list[Event] = []
    limits = replace(LIMITS, max_batch=3)
    flipped = policies(schedule=TurnAround)
    simulate(workload(30, 20.0), cluster("small"), flipped, limits, observe=events.append)
    assert any(isinstance(event, Preempted) for event in events)


def test_clients_in_a_closed_loop_keep_so_many_requests_running() -> None:
    most = 0

    def observe(event: Event) -> None:
        nonlocal most
        if isinstance(event, Verified):
            most = max(most, len(event.outcomes))

    at_once = [replace(one, at_s=0.0) for one in workload()]
    report = simulate(at_once, cluster(), policies(), LIMITS, clients=3, observe=observe)
    assert len(report.served) == len(at_once)
    assert most == 3
    # Nobody waits: every request begins as one before it ends.
    ends = {0.0} | {one.finished_s for one in report.served}
    assert {one.begun_s for one in report.served} <= ends


def test_a_verifier_that_is_off_by_one_position_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = TargetScript.upto
    monkeypatch.setattr(TargetScript, "upto", lambda self, end: right(self, end + 1)[1:])
    with pytest.raises(WrongOutput):
        simulate(workload(3), cluster("small"), policies(), LIMITS)

"""A small simulated server in virtual time, for tests of schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.protocols import Schedule
from policies.request import RequestView, RoundOutcome, Slo


@dataclass(frozen=True)
class Job:
    name: str
    arrival_s: float
    tokens: int
    predicted_len: float | None = None
    acceptance: float = 0.0
    """Probability that a draft token is accepted after accepted ones."""
    priority: int = 0
    tenant: str = ""
    slo: Slo = field(default_factory=Slo)


@dataclass
class Served:
    finish_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    longest_wait_s: dict[str, float] = field(default_factory=dict)
    """The longest time between two rounds of each request, or before its first."""
    most_live: int = 0
    preemptions: int = 0
    longest_round_s: float = 0.0
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def mean_latency_s(self, jobs: Sequence[Job]) -> float:
        return sum(self.finish_s[job.name] - job.arrival_s for job in jobs) / len(jobs)


def serve(
    schedule: Schedule,
    jobs: Sequence[Job],
    slots: int = 1,
    depth: int = 4,
    draft_s: float = 0.005,
    verify_s: float = 0.05,
    switch_s: float = 0.0,
    seed: int = 0,
) -> Served:
    """Runs all jobs to their end. Each round takes the same time, plus `switch_s` for each request
    that resumes after a preemption."""
    rng = np.random.default_rng(seed)
    due = sorted(jobs, key=lambda job: job.arrival_s)
    live: dict[str, tuple[Job, RequestView]] = {}
    waiting_since: dict[str, float] = {}
    running: list[str] = []
    served = Served()
    now = 0.0
    while due or live:
        if not live:
            now = max(now, due[0].arrival_s)
        while due and due[0].arrival_s <= now:
            job = due.pop(0)
            live[job.name] = (job, _view(job))
            waiting_since[job.name] = job.arrival_s
            served.longest_wait_s[job.name] = 0.0
            schedule.arrive(live[job.name][1], now)
        served.most_live = max(served.most_live, len(live))

        picked = schedule.pick([view for _, view in live.values()], running, slots, now)
        usable = min(slots, len(live))
        assert len(set(picked)) == len(picked) <= usable
        # Only triage, which needs a TPOT, leaves slots unused, and never all of them.
        least = 1 if any(job.slo.tpot_s for job, _ in live.values()) else usable
        assert len(picked) >= least, "slots are left unused"
        served.preemptions += len(set(running) - set(picked))
        resumed = [name for name in picked if name not in running and live[name][1].generated]
        round_s = depth * draft_s + verify_s + switch_s * len(resumed)
        served.longest_round_s = max(served.longest_round_s, round_s)
        served.ran.append(tuple(picked))
        for name in picked:
            wait_s = now - waiting_since[name]
            served.longest_wait_s[name] = max(served.longest_wait_s[name], wait_s)
        now += round_s
        running = []
        for name in picked:
            job, view = live[name]
            waiting_since[name] = now
            misses = np.flatnonzero(rng.random(depth) >= job.acceptance)
            accepted = int(misses[0]) if len(misses) else depth
            view.generated = min(job.tokens, view.generated + accepted + 1)
            if view.first_token_s is None:
                view.first_token_s = served.first_token_s[name] = now
            outcome = RoundOutcome(
                request=name,
                lane="a",
                drafted=depth,
                depth=depth,
                accepted=accepted,
                committed=accepted + 1,
                seconds=round_s,
                verify_s=verify_s,
                draft_s=depth * draft_s,
            )
            schedule.observe([outcome], now)
            if view.generated == job.tokens:
                served.finish_s[name] = now
                schedule.forget(name)
                del live[name]
            else:
                running.append(name)
    return served


def _view(job: Job) -> RequestView:
    return RequestView(
        name=job.name,
        arrival_s=job.arrival_s,
        prompt_len=32,
        max_tokens=4 * job.tokens,
        slo=job.slo,
        priority=job.priority,
        tenant=job.tenant,
        predicted_len=job.predicted_len,
    )

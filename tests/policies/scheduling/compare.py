"""Prints the tables of docs/policies/scheduling.md: python -m tests.policies.scheduling.compare

Mean latency of each schedule over that of shortest remaining time with perfect knowledge, on the
small server of server.py. Poisson arrivals, log-normal lengths, predictions off by a log-normal
factor, acceptance drawn per request; a preemption costs 50 ms. Median of seven seeds.
"""

from collections.abc import Callable, Sequence
from statistics import median

from policies.protocols import Schedule
from policies.request import RequestView
from policies.scheduling.baselines import Las, SortedSchedule, fcfs, lp_sjf
from policies.scheduling.default import DefaultSchedule
from policies.scheduling.fairness import FairSchedule
from policies.scheduling.laps_sd import LapsSd
from tests.policies.scheduling.server import Job, serve
from tests.policies.scheduling.workload import mixed_jobs

SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "fcfs": fcfs,
    "lp_sjf": lp_sjf,
    "las": Las,
    "laps_sd": LapsSd,
    "default": DefaultSchedule,
    "default, fair": lambda: FairSchedule(DefaultSchedule()),
}
# Slots, requests, arrivals per second, error of predicted lengths, acceptance rates.
SETTINGS = {
    "1 slot, lengths known, acceptance 0.1 or 0.95": (1, 60, 0.6, 0.0, (0.1, 0.95)),
    "1 slot, lengths ±40%, acceptance 0.1, 0.5, 0.95": (1, 60, 0.6, 0.4, (0.1, 0.5, 0.95)),
    "4 slots, lengths ±40%, acceptance 0.1, 0.5, 0.95": (4, 120, 2.0, 0.4, (0.1, 0.5, 0.95)),
    "4 slots, the same, overloaded": (4, 120, 3.0, 0.4, (0.1, 0.5, 0.95)),
    "4 slots, lengths known, acceptance 0.5": (4, 120, 1.8, 0.0, (0.5,)),
}


def clairvoyant(jobs: Sequence[Job], depth: int = 4) -> Schedule:
    """Shortest remaining time by true length and acceptance."""
    by_name = {job.name: job for job in jobs}

    def rounds_left(view: RequestView, running: bool) -> float:
        job = by_name[view.name]
        per_round = sum(job.acceptance**position for position in range(depth + 1))
        return (job.tokens - view.generated) / per_round - running

    return SortedSchedule(rounds_left)


def main() -> None:
    for label, (slots, count, rate, error, acceptance) in SETTINGS.items():
        print(f"\n{label}")
        workloads = [mixed_jobs(seed, count, rate, error, acceptance) for seed in range(7)]
        best = [
            serve(clairvoyant(jobs), jobs, slots, switch_s=0.05).mean_latency_s(jobs)
            for jobs in workloads
        ]
        for name, make in SCHEDULES.items():
            served = [serve(make(), jobs, slots, switch_s=0.05) for jobs in workloads]
            ratios = [
                one.mean_latency_s(jobs) / least
                for one, jobs, least in zip(served, workloads, best, strict=True)
            ]
            preemptions = median(one.preemptions / count for one in served)
            print(f"  {name:14} {median(ratios):5.2f}   {preemptions:.2f} preemptions per request")


if __name__ == "__main__":
    main()

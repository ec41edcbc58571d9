"""Measures how well the simulator predicts goodput and latency of real runs.

`python -m lab.studies.reality [--clients 4] [--repeats 5] [--json FILE]`.

It profiles the zoo, records its drafters on some held-out requests (which refines the profiled
costs, as in service), serves other requests for real, and simulates the same ones from what was
recorded. Learned costs leave out pauses of the machine; their effect is estimated as what plain
decoding of the recorded requests took over its own simulation. Names:
reality/CLIENTS/{plain,fixed,drafted}/...: without drafts, with six tokens of the first drafter, and
with the default policies; `value` is simulated, `reference` real.

Everything is done `--repeats` times, and the median ratio is compared with the bound, for a machine
that changes its speed between two runs spoils one comparison. Exits with an error where goodput or
mean latency is off by more than 10%.
"""

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits
from actors.hosts.fleet import Fleet, start_fleet
from benchmarks.report import Record, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.local import (
    KV_TOKENS,
    MAX_TOKENS,
    RequestTiming,
    drafter_config,
    serve,
    target_config,
)
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.simulator.acceptance import Acceptance
from benchmarks.simulator.run import (
    Cluster,
    CoordinatorTime,
    DrafterSpec,
    MakePolicies,
    named_policies,
    simulate,
)
from benchmarks.simulator.run_report import Report, Tally
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from cluster.cache import cache_dir
from lab.studies.fit import fit_acceptance
from lab.studies.recorder import Recorder, Trace
from policies.cost import CostModel

MAX_ERROR = 0.10
RECORDED_DEPTH = 6
MAX_COORDINATOR_SHARE = 0.5
"""The largest share of a forward's time; what is longer is a pause of the machine."""


@dataclass(frozen=True, slots=True)
class RealRun:
    served: Sequence[RequestTiming]
    seconds: float
    tally: Tally
    forwards: Sequence[Verified]

    @property
    def goodput(self) -> float:
        return sum(request.tokens for request in self.served) / self.seconds

    @property
    def mean_latency_s(self) -> float:
        return mean(request.seconds for request in self.served)


@dataclass(frozen=True, slots=True)
class Serving:
    """How a run is served."""

    make_policies: MakePolicies
    estimates: Estimates
    clients: int


def policies(
    speculation: str, selection: str = "hedge", drafter: str | None = None
) -> MakePolicies:
    """With drafts of RECORDED_DEPTH where the length is fixed."""
    return named_policies(
        speculation,
        selection,
        speculation_options={"length": RECORDED_DEPTH} if speculation == "fixed" else None,
        selection_options={"drafter": drafter} if drafter else None,
    )


def limits(clients: int) -> Limits:
    return Limits(max_batch=clients, max_waiting=clients, kv_tokens=KV_TOKENS)


async def run_for_real(
    fleet: Fleet, lanes: Sequence[Lane], requests: Sequence[Request], serving: Serving
) -> RealRun:
    """Serves the requests, which are named r0, r1, ..., in a closed loop."""
    tally = Tally()
    forwards: list[Verified] = []

    def observe(event: Event) -> None:
        tally.observe(event)
        if isinstance(event, Verified):
            forwards.append(event)

    coordinator = Coordinator(
        fleet.verifier,
        lanes,
        serving.make_policies(serving.estimates.calibrations),
        serving.estimates,
        limits(serving.clients),
        observe=observe,
    )

    async def send(number: int, request: Request) -> RequestTiming:
        return await serve(coordinator, f"r{number}", request, speculate=True)

    served, seconds = await closed_loop(requests, serving.clients, send)
    await coordinator.close()
    return RealRun(served, seconds, tally, forwards)


async def record(fleet: Fleet, requests: Sequence[Request], clients: int) -> Acceptance:
    """All drafters' acceptance: each model drafts for all requests, and lookups with each model."""
    traces: list[Trace] = []
    lanes = [
        replace(
            lane,
            host=Recorder(
                lane.host,
                lane.view.drafter,
                lambda name: requests[int(name[1:])].domain,
                traces.append,
            ),
        )
        for lane in fleet.lanes
    ]
    estimates = Estimates(fleet.costs, [lane.view for lane in lanes])
    for lane in lanes:
        if not lane.always_drafts:
            make = policies("fixed", "fixed", lane.view.drafter)
            await run_for_real(fleet, lanes, requests, Serving(make, estimates, clients))
    return fit_acceptance(traces)


def coordinator_time(forwards: Sequence[Verified], cost: CostModel) -> CoordinatorTime:
    """What forwards without prefill took beyond drafting and their modelled cost, on average over
    the run. (The coordinator's own estimate follows the last ten or so forwards only.)"""
    beyond_s: dict[bool, list[float]] = {False: [], True: []}
    for forward in forwards:
        if not forward.outcomes or forward.prefill_tokens:
            continue
        draft_s = max(outcome.draft_s for outcome in forward.outcomes)
        waited_s = max(0.0, forward.idle_s - draft_s)
        predicted_s = cost.predict(forward.context, forward.tokens)
        drafting = any(outcome.tried for outcome in forward.outcomes)
        more_s = waited_s + forward.seconds - predicted_s
        beyond_s[drafting].append(min(more_s, MAX_COORDINATOR_SHARE * predicted_s))
    plain_s, drafting_s = (mean(beyond_s[drafting] or [0.0]) for drafting in (False, True))
    if beyond_s[True]:  # rounds without drafts may be too few for a mean
        plain_s = min(plain_s, drafting_s)
    return CoordinatorTime(max(0.0, plain_s), max(0.0, drafting_s - max(0.0, plain_s)))


def modelled(
    fleet: Fleet, acceptance: Acceptance, estimates: Estimates, learned_in: RealRun
) -> Cluster:
    """The fleet with its recorded acceptance and the costs learned in a run."""
    learned = estimates.context()
    return Cluster(
        learned.verify,
        KvMemory(KV_TOKENS),
        [
            DrafterSpec(
                lane.view.name,
                lane.view.drafter,
                learned.draft.get(lane.view.name),
                lane.view.capacity,
                learned.draft_budgets.get(lane.view.name, learned.most_tokens),
                call_s=learned.call_s.get(lane.view.name, 0.0),
                apart=lane.own_processors,
            )
            for lane in fleet.lanes
        ],
        acceptance,
        learned.verify_budget,
        learned.most_tokens,
        coordinator_time=coordinator_time(learned_in.forwards, learned.verify),
    )


def simulated(
    cluster: Cluster, requests: Sequence[Request], real: RealRun, clients: int, make: MakePolicies
) -> Report:
    """Simulates the requests of the real run, with their output lengths."""
    arrivals = [
        Arrival(f"r{n}", 0.0, len(request.prompt), served.tokens, MAX_TOKENS, request.domain)
        for n, (request, served) in enumerate(zip(requests, real.served, strict=True))
    ]
    return simulate(arrivals, cluster, make, limits(clients), clients=clients)


def compare_repeatedly(
    repeats: int,
    fleet: Fleet,
    recorded: Sequence[Request],
    requests: Sequence[Request],
    clients: Sequence[int],
) -> list[Record]:
    """For each name the record with the median ratio."""
    runs = [compare(fleet, recorded, requests, clients) for _ in range(repeats)]
    by_name = [sorted(same, key=lambda r: r.ratio or 0.0) for same in zip(*runs, strict=True)]
    return [same[(repeats - 1) // 2] for same in by_name]


def compare(
    fleet: Fleet,
    recorded: Sequence[Request],
    requests: Sequence[Request],
    clients: Sequence[int],
) -> list[Record]:
    """Simulated over real of `requests`, predicted from the `recorded` ones."""
    acceptance = asyncio.run(record(fleet, recorded, max(clients)))
    modes = {
        "plain": policies("off", "fixed"),
        "fixed": policies("fixed", "fixed", fleet.lanes[0].view.drafter),
        "drafted": policies("planner"),
    }
    records = []
    for count in clients:
        pauses = 1.0
        for name, make in modes.items():
            # A forward's time depends on what else the cores do: learn it under these policies.
            learning = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
            serving = Serving(make, learning, count)
            learned = asyncio.run(run_for_real(fleet, fleet.lanes, recorded, serving))
            cluster = modelled(fleet, acceptance, learning, learned)
            if name == "plain":
                # Costs leave out outliers (policies/estimates/online_cost.py), such as pauses of a
                # shared machine; served requests do not.
                report = simulated(cluster, recorded, learned, count, make)
                pauses = learned.mean_latency_s / report.mean_latency_s
            estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
            serving = Serving(make, estimates, count)
            real = asyncio.run(run_for_real(fleet, fleet.lanes, requests, serving))
            report = simulated(cluster, requests, real, count, make)
            goodput, latency_s = report.throughput / pauses, report.mean_latency_s * pauses
            prefix = f"reality/{count}/{name}"
            records += [
                Record.over(real.goodput, f"{prefix}/goodput", goodput, "tokens/s"),
                Record.over(real.mean_latency_s, f"{prefix}/mean_latency", latency_s, "s"),
            ]
    return records


def add_fleet_arguments(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--params", type=int, default=90_000_000, help="of the target; 0: the zoo's, not inflated"
    )
    arguments.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--drafters", nargs="*", default=["tiny", "code", "prose", "ngram"])


def load_fleet(options: Namespace) -> Fleet:
    """The models that the options name, on two threads."""
    torch.set_num_threads(2)
    target = target_config(options.params or None, options.dtype)
    drafters = [drafter_config(name) for name in options.drafters]
    return asyncio.run(start_fleet(target, drafters, cache_dir() / "profiles"))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[4])
    arguments.add_argument("--requests", type=int, default=24)
    arguments.add_argument("--recorded", type=int, default=48)
    arguments.add_argument("--repeats", type=int, default=5)
    add_fleet_arguments(arguments)
    options = arguments.parse_args()
    fleet = load_fleet(options)
    recorded, requests = mixed_requests(options.recorded, seed=2), mixed_requests(options.requests)
    records = compare_repeatedly(options.repeats, fleet, recorded, requests, options.clients)
    publish(records, options.json)
    missed = [r.name for r in records if r.ratio and abs(r.ratio - 1) > MAX_ERROR]
    if missed:
        raise SystemExit(f"off by more than {MAX_ERROR:.0%}: {', '.join(missed)}")


if __name__ == "__main__":
    main()

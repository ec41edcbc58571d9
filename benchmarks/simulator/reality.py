"""The simulator against reality: `python -m benchmarks.simulator.reality [--clients 4]`.

In one command: profiles the zoo, records its drafters on some held-out requests (which refines the
profiled costs as it does in service), serves others for real, and simulates just these with what
was recorded. Learned costs leave out that a machine stands still at times: how much longer that
makes things is what plain decoding of the recorded requests took beyond its own simulation. Names:
reality/CLIENTS/{plain,fixed,drafted}/...: without drafts, with six tokens of the first drafter, and
as the defaults choose; `value` is simulated, `reference` real.
All of it is done `--repeats` times, and the median ratio is judged: a machine that changes its pace
between two runs spoils one comparison. Exits with an error where goodput or mean latency is off by
more than 10%.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.hosts.fleet import Fleet, load
from actors.hosts.specs import TargetSpec
from benchmarks.report import Record, parser, publish
from benchmarks.serving.local import KV_TOKENS, MAX_TOKENS, Served, drafter, serve
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.simulator.acceptance import Acceptance
from benchmarks.simulator.fit import fit_acceptance
from benchmarks.simulator.recorder import Recorder, Trace
from benchmarks.simulator.report import Report, Tally
from benchmarks.simulator.run import Cluster, DrafterSpec, MakePolicies, OwnTime, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from cluster.zoo.paths import TARGET, cache_dir, inflated_target, model_path
from policies.catalogue import Calibrations, make_schedule, make_selection, make_speculation
from policies.cost import CostModel

MOST_OFF = 0.10
RECORDED_DEPTH = 6
MOST_OWN = 0.5
"""Of a forward."""


@dataclass(frozen=True, slots=True)
class Run:
    served: Sequence[Served]
    seconds: float
    tally: Tally
    forwards: Sequence[Verified]

    @property
    def goodput(self) -> float:
        return sum(one.tokens for one in self.served) / self.seconds

    @property
    def mean_latency_s(self) -> float:
        return mean(one.seconds for one in self.served)


@dataclass(frozen=True, slots=True)
class Serving:
    make_policies: MakePolicies
    estimates: Estimates
    clients: int


def policies(
    speculation: str, selection: str = "hedge", drafter: str | None = None
) -> MakePolicies:
    options = {"length": RECORDED_DEPTH} if speculation == "fixed" else {}

    def make(calibrations: Calibrations) -> Policies:
        return Policies(
            make_schedule("default"),
            make_selection(selection, {"drafter": drafter} if drafter else {}),
            make_speculation(speculation, options, calibrations),
        )

    return make


def limits(clients: int) -> Limits:
    return Limits(max_batch=clients, max_waiting=clients, kv_tokens=KV_TOKENS)


async def run_for_real(
    fleet: Fleet, lanes: Sequence[Lane], requests: Sequence[Request], serving: Serving
) -> Run:
    """Closed loop; requests are named by their place."""
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
    clock = asyncio.get_running_loop().time
    waiting = iter(enumerate(requests))
    served: dict[int, Served] = {}

    async def client() -> None:
        for number, request in waiting:
            served[number] = await serve(coordinator, f"r{number}", request, speculate=True)

    begun = clock()
    await asyncio.gather(*(client() for _ in range(serving.clients)))
    seconds = clock() - begun
    await coordinator.close()
    in_order = [served[number] for number in range(len(requests))]
    return Run(in_order, seconds, tally, forwards)


async def record(fleet: Fleet, requests: Sequence[Request], clients: int) -> Acceptance:
    """Each model drafts for all requests; lookups beside all of them."""
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
        if not lane.free:
            make = policies("fixed", "fixed", lane.view.drafter)
            await run_for_real(fleet, lanes, requests, Serving(make, estimates, clients))
    return fit_acceptance(traces)


def own_time(forwards: Sequence[Verified], cost: CostModel) -> OwnTime:
    """What the forwards without prompts took beyond drafting and their cost, on average over all of
    them. (What a coordinator believes of it follows the last ten or so: at the end of a run it is
    mostly those ten's luck.)"""
    beyond_s: dict[bool, list[float]] = {False: [], True: []}
    for one in forwards:
        if not one.outcomes or one.prefill_tokens:
            continue
        drafting_s = max(outcome.draft_s for outcome in one.outcomes)
        waited_s = max(0.0, one.idle_s - drafting_s)
        predicted_s = cost.predict(one.context, one.tokens)
        asked = any(outcome.tried for outcome in one.outcomes)
        # A pause of the whole machine is not the coordinator's.
        more_s = min(waited_s + one.seconds - predicted_s, MOST_OWN * predicted_s)
        beyond_s[asked].append(more_s)
    plain_s, asked_s = (mean(beyond_s[asked] or [0.0]) for asked in (False, True))
    if beyond_s[True]:  # where nearly all are asked, the few others tell little
        plain_s = min(plain_s, asked_s)
    return OwnTime(max(0.0, plain_s), max(0.0, asked_s - max(0.0, plain_s)))


def modelled(
    fleet: Fleet, acceptance: Acceptance, estimates: Estimates, learned_in: Run
) -> Cluster:
    """The fleet, with what was recorded of its drafters and learned of its costs."""
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
                call_s=learned.call_s.get(lane.view.name, 0.0),
                apart=lane.apart,
            )
            for lane in fleet.lanes
        ],
        acceptance,
        learned.verify_budget,
        learned.draft_budget,
        learned.most_tokens,
        own=own_time(learned_in.forwards, learned.verify),
    )


def simulated(
    cluster: Cluster, requests: Sequence[Request], real: Run, clients: int, make: MakePolicies
) -> Report:
    """The same requests."""
    arrivals = [
        Arrival(f"r{n}", 0.0, len(request.prompt), one.tokens, MAX_TOKENS, request.domain)
        for n, (request, one) in enumerate(zip(requests, real.served, strict=True))
    ]
    return simulate(arrivals, cluster, make, limits(clients), clients=clients)


def compare_often(
    repeats: int,
    fleet: Fleet,
    recorded: Sequence[Request],
    requests: Sequence[Request],
    clients: Sequence[int],
) -> list[Record]:
    """Of each name the comparison whose ratio is the median."""
    runs = [compare(fleet, recorded, requests, clients) for _ in range(repeats)]
    by_name = [sorted(ones, key=lambda one: one.ratio or 0.0) for ones in zip(*runs, strict=True)]
    return [ones[(repeats - 1) // 2] for ones in by_name]


def compare(
    fleet: Fleet,
    recorded: Sequence[Request],
    requests: Sequence[Request],
    clients: Sequence[int],
) -> list[Record]:
    """Simulated over real, from what the `recorded` ones show, for the others."""
    acceptance = asyncio.run(record(fleet, recorded, max(clients)))
    served = {
        "plain": policies("off", "fixed"),
        "fixed": policies("fixed", "fixed", fleet.lanes[0].view.drafter),
        "drafted": policies("planner"),
    }
    records = []
    for count in clients:
        pauses = 1.0
        for name, make in served.items():
            # A forward's pace depends on what else the cores do: learn it under these policies.
            learning = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
            serving = Serving(make, learning, count)
            learned = asyncio.run(run_for_real(fleet, fleet.lanes, recorded, serving))
            cluster = modelled(fleet, acceptance, learning, learned)
            if name == "plain":
                # Costs leave out what is odd (policies/estimates/online_cost.py), such as the
                # moments in which a shared machine stands still; what is served waits through
                # them.
                report = simulated(cluster, recorded, learned, count, make)
                pauses = learned.mean_latency_s / report.mean_latency_s
            estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
            serving = Serving(make, estimates, count)
            real = asyncio.run(run_for_real(fleet, fleet.lanes, requests, serving))
            report = simulated(cluster, requests, real, count, make)
            goodput, latency_s = report.throughput / pauses, report.mean_latency_s * pauses
            prefix = f"reality/{count}/{name}"
            records += [
                _compared(f"{prefix}/goodput", goodput, real.goodput, "tokens/s"),
                _compared(f"{prefix}/mean_latency", latency_s, real.mean_latency_s, "s"),
            ]
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[4])
    arguments.add_argument("--requests", type=int, default=24)
    arguments.add_argument("--recorded", type=int, default=48)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument(
        "--params", type=int, default=90_000_000, help="of the target; 0: the zoo's, not inflated"
    )
    arguments.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--drafters", nargs="*", default=["tiny", "code", "prose", "ngram"])
    chosen = arguments.parse_args()
    torch.set_num_threads(2)
    model = inflated_target(chosen.params) if chosen.params else model_path(TARGET)
    target = TargetSpec(model, getattr(torch, chosen.dtype), KV_TOKENS)
    fleet = load(target, [drafter(name) for name in chosen.drafters], cache_dir() / "profiles")
    recorded, requests = mixed_requests(chosen.recorded, seed=2), mixed_requests(chosen.requests)
    records = compare_often(chosen.repeats, fleet, recorded, requests, chosen.clients)
    publish(records, chosen.json)
    off = [one.name for one in records if one.ratio and abs(one.ratio - 1) > MOST_OFF]
    if off:
        raise SystemExit(f"off by more than {MOST_OFF:.0%}: {', '.join(off)}")


def _compared(name: str, simulated: float, real: float, unit: str) -> Record:
    return Record(name, simulated, unit, real, simulated / real)


if __name__ == "__main__":
    main()

"""Measures how well the simulator predicts real runs under an open load with SLOs.

`python -m lab.studies.reality_load [--loads 0.8 1.2] [--repeats 3] [--json FILE]`.

As lab.studies.reality, but requests arrive by a Poisson process, at a share of the rate
that the same policies reach in a closed loop. All have an SLO: TPOT is `--slack` times the mean
time per token of plain decoding in that closed loop, TTFT twice its mean latency. Names:
reality_load/LOAD/{plain,drafted}/...: goodput is of the requests that meet their SLO, attainment
their share; `value` is simulated, `reference` real. Exits with an error where the median of a ratio
is off by more than 10%.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from actors.coordinator.estimates import Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits
from actors.hosts.fleet import Fleet
from benchmarks.report import Record, parser, publish
from benchmarks.serving.local import KV_TOKENS, MAX_TOKENS, RequestTiming
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.simulator.run import simulate
from benchmarks.simulator.workload import Arrival, poisson
from engine.sampling.params import SamplingParams
from lab.studies.reality import (
    MAX_ERROR,
    RealRun,
    Serving,
    add_fleet_arguments,
    load_fleet,
    modelled,
    policies,
    record,
    run_for_real,
    simulated,
)
from policies.request import Slo

MODES = {"plain": "off", "drafted": "planner"}


@dataclass(frozen=True, slots=True)
class Load:
    """Requests with the times of their arrivals, and the SLO of all of them."""

    requests: Sequence[Request]
    times_s: Sequence[float]
    slo: Slo


@dataclass(frozen=True, slots=True)
class Outcome:
    goodput: float
    attainment: float
    mean_latency_s: float


def time_per_token_s(served: RequestTiming) -> float:
    """After the first token."""
    return (served.seconds - served.ttft_s) / max(1, served.tokens - 1)


def meets(served: RequestTiming, slo: Slo) -> bool:
    assert slo.ttft_s is not None
    assert slo.tpot_s is not None
    return served.ttft_s <= slo.ttft_s and time_per_token_s(served) <= slo.tpot_s


async def serve_open(fleet: Fleet, offered: Load, serving: Serving) -> list[RequestTiming]:
    """Serves each request for real from the time of its arrival."""
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        serving.make_policies(serving.estimates.calibrations),
        serving.estimates,
        _limits(offered, serving.clients),
    )
    clock = asyncio.get_running_loop().time
    begin_s = clock()

    async def serve(number: int, request: Request) -> RequestTiming:
        # From when it was due: a loop that a draft blocks wakes late, and the request waits then.
        arrived_s, first_s, tokens = begin_s + offered.times_s[number], 0.0, 0
        await asyncio.sleep(arrived_s - clock())
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        name, slo = f"r{number}", offered.slo
        async for commit in coordinator.submit(name, request.prompt, params, slo=slo):
            first_s = first_s or clock() - arrived_s
            tokens += len(commit.token_ids)
        return RequestTiming(request.domain, tokens, first_s, clock() - arrived_s)

    served = await asyncio.gather(*(serve(n, r) for n, r in enumerate(offered.requests)))
    await coordinator.close()
    return list(served)


def real_outcome(served: Sequence[RequestTiming], offered: Load) -> Outcome:
    good = [one for one in served if meets(one, offered.slo)]
    ends = [at_s + one.seconds for at_s, one in zip(offered.times_s, served, strict=True)]
    return Outcome(
        sum(one.tokens for one in good) / (max(ends) - offered.times_s[0]),
        len(good) / len(served),
        mean(one.seconds for one in served),
    )


def slowed(offered: Load, served: Sequence[RequestTiming], pauses: float) -> list[Arrival]:
    """The load with the output lengths of a real run, in the time of a machine that stands still
    at times: all that a simulation without pauses finds takes `pauses` times as long there."""
    ttft_s, tpot_s = offered.slo.ttft_s, offered.slo.tpot_s
    slo = Slo(ttft_s and ttft_s / pauses, tpot_s and tpot_s / pauses)
    each = zip(offered.requests, offered.times_s, served, strict=True)
    return [
        Arrival(
            f"r{number}",
            at_s / pauses,
            len(request.prompt),
            one.tokens,
            MAX_TOKENS,
            request.domain,
            slo,
        )
        for number, (request, at_s, one) in enumerate(each)
    ]


def compare(
    fleet: Fleet, recorded: Sequence[Request], requests: Sequence[Request], options: "Settings"
) -> list[Record]:
    """Simulated over real, predicted from the `recorded` requests."""
    acceptance = asyncio.run(record(fleet, recorded, options.clients))
    records = []
    slo, pauses = Slo(), 1.0
    for mode, speculation in MODES.items():
        make = policies(speculation)
        learning = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
        serving = Serving(make, learning, options.clients)
        learned = asyncio.run(run_for_real(fleet, fleet.lanes, recorded, serving))
        cluster = modelled(fleet, acceptance, learning, learned)
        if mode == "plain":
            token_s = mean(map(time_per_token_s, learned.served))
            slo = Slo(2.0 * learned.mean_latency_s, options.slack * token_s)
            report = simulated(cluster, recorded, learned, options.clients, make)
            pauses = learned.mean_latency_s / report.mean_latency_s
        for share in options.loads:
            times = poisson(share * _rate(learned), len(requests), seed=1)
            offered = Load(requests, times.tolist(), slo)
            estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
            real = asyncio.run(serve_open(fleet, offered, replace(serving, estimates=estimates)))
            arrivals = slowed(offered, real, pauses)
            report = simulate(arrivals, cluster, make, _limits(offered, options.clients))
            ours, prefix = real_outcome(real, offered), f"reality_load/{share}/{mode}"
            goodput, latency_s = report.goodput / pauses, report.mean_latency_s * pauses
            records += [
                Record.over(ours.goodput, f"{prefix}/goodput", goodput, "tokens/s"),
                Record.over(ours.attainment, f"{prefix}/attainment", report.attainment, "share"),
                Record.over(ours.mean_latency_s, f"{prefix}/mean_latency", latency_s, "s"),
            ]
    return records


@dataclass(frozen=True, slots=True)
class Settings:
    clients: int
    """The largest batch, and the clients of the closed loop."""
    loads: Sequence[float]
    slack: float


def compare_repeatedly(
    repeats: int,
    fleet: Fleet,
    recorded: Sequence[Request],
    requests: Sequence[Request],
    options: Settings,
) -> list[Record]:
    """Of each name the record with the median ratio."""
    runs = [compare(fleet, recorded, requests, options) for _ in range(repeats)]
    by_name = [sorted(same, key=lambda r: r.ratio or 0.0) for same in zip(*runs, strict=True)]
    return [same[(repeats - 1) // 2] for same in by_name]


def _rate(run: RealRun) -> float:
    return len(run.served) / run.seconds


def _limits(offered: Load, clients: int) -> Limits:
    return Limits(max_batch=clients, max_waiting=len(offered.requests), kv_tokens=KV_TOKENS)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.2])
    arguments.add_argument("--slack", type=float, default=1.2)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--requests", type=int, default=96)
    arguments.add_argument("--recorded", type=int, default=96)
    arguments.add_argument("--repeats", type=int, default=3)
    add_fleet_arguments(arguments)
    options = arguments.parse_args()
    fleet = load_fleet(options)
    recorded, requests = mixed_requests(options.recorded, seed=2), mixed_requests(options.requests)
    settings = Settings(options.clients, options.loads, options.slack)
    records = compare_repeatedly(options.repeats, fleet, recorded, requests, settings)
    publish(records, options.json)
    missed = [r.name for r in records if r.ratio and abs(r.ratio - 1) > MAX_ERROR]
    if missed:
        raise SystemExit(f"off by more than {MAX_ERROR:.0%}: {', '.join(missed)}")


if __name__ == "__main__":
    main()

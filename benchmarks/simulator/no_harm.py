"""Measures the planner's goodput and each domain's speed over plain decoding, in virtual time.

`python -m benchmarks.simulator.no_harm [--clients 1 4 16] [--seeds 3] [--apart] [--json FILE]`.

A model of the zoo's mixed load in `benchmarks.serving.local`, so that versions of the planner are
compared on the same run, whatever else the machine does. Costs, acceptances and the additional time
of rounds with drafts were options so that results at 4 and 16 clients are about those measured on a
quiet machine (docs/policies/planner.md). `--call-ms` is the round trip of a call to a host, with
`--scatters` only its mean, as on a shared machine. Drafters share the verifier's processors, so
they hardly catch up in idle time, except with `--apart`.

Names: no_harm/CLIENTS/OBJECTIVE/{total,code,prose,tasks}; values are over plain decoding, those of
domains medians of each request's own ratio. no_harm/CLIENTS/to_throughput_objective is the fair
objective's total over the throughput objective's. Exits with 1 where a domain is below 0.97 under
the fair objective, or its total below 0.95 of the throughput objective's.
"""

import sys
from collections.abc import Mapping
from statistics import mean, median

import numpy as np

from actors.coordinator.settings import Limits
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.acceptance import Acceptance, DrafterModel, synthetic
from benchmarks.simulator.run import Cluster, DrafterSpec, MakePolicies, named_policies, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from policies.cost import LinearCost

NO_HARM_BOUND, SHARE_OF_THROUGHPUT = 0.97, 0.95
OBJECTIVES = ("fair", "throughput")
KV_TOKENS = 1 << 20
MAX_TOKENS = 128
OUTPUT_TOKENS = {"code": 45, "prose": 20, "tasks": 70}
"""Median by domain."""

VERIFY = LinearCost(alpha=1e-6, gamma=2.2e-4, delta=12.2e-3)
DRAFT = {
    "tiny": LinearCost(1.2e-7, 6e-5, 1.5e-4),
    "code": LinearCost(1.8e-7, 1.2e-4, 2.4e-4),
    "prose": LinearCost(2.0e-7, 1.2e-4, 2.0e-4),
}
LOOKUP_CALL_S = 2.5e-3
"""Additional time of a round with drafts: planning, orders, lookups, selection."""
TRANSPORT_S = 4e-4
ACCEPTED = {
    "tiny": {"code": 0.40, "prose": 0.20, "tasks": 0.84},
    "code": {"code": 0.52, "prose": 0.22, "tasks": 0.15},
    "prose": {"code": 0.33, "prose": 0.36, "tasks": 0.18},
}
LOOKUP = {"code": (0.45, 0.23), "prose": (0.37, 0.27), "tasks": (0.58, 0.09)}
"""Of the suffix lookup, by domain: acceptance, and share of positions without a proposal."""

PLAIN = named_policies("off", "fixed")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--requests", type=int, default=144)
    arguments.add_argument("--call-ms", type=float, default=1e3 * TRANSPORT_S)
    arguments.add_argument("--scatters", action="store_true")
    arguments.add_argument("--apart", action="store_true", help="drafters have their own devices")
    options = arguments.parse_args()
    replica = cluster(options.call_ms / 1e3, options.scatters, options.apart)
    policies = objectives()
    records, missed = [], []
    for clients in options.clients:
        runs = [
            compare(replica, seed, clients, options.requests, policies)
            for seed in range(options.seeds)
        ]
        for name in runs[0]:
            value = mean(run[name] for run in runs)
            records.append(Record(f"no_harm/{clients}/{name}", value, "x plain"))
            if name.startswith("fair") and value < NO_HARM_BOUND:
                missed.append(f"{clients}/{name} {value:.3f}, below {NO_HARM_BOUND}")
        fair, throughput = (
            mean(run[f"{objective}/total"] for run in runs) for objective in OBJECTIVES
        )
        name = f"no_harm/{clients}/to_throughput_objective"
        records.append(Record.over(throughput, name, fair, "x plain"))
        share = fair / throughput
        if share < SHARE_OF_THROUGHPUT:
            missed.append(f"{clients}/total {share:.3f} of {throughput:.2f}")
    publish(records, options.json)
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


def compare(
    replica: Cluster, seed: int, clients: int, requests: int, policies: Mapping[str, MakePolicies]
) -> dict[str, float]:
    """Ratios over plain decoding, by POLICY/total and POLICY/DOMAIN."""
    arrivals = workload(seed, requests)
    plain_total, plain = serve(arrivals, replica, seed, clients, PLAIN)
    ratios = {}
    for policy, make in policies.items():
        total, speeds = serve(arrivals, replica, seed, clients, make)
        ratios[f"{policy}/total"] = total / plain_total
        for domain in OUTPUT_TOKENS:
            names = [arrival.name for arrival in arrivals if arrival.domain == domain]
            ratios[f"{policy}/{domain}"] = median(speeds[name] / plain[name] for name in names)
    return ratios


def workload(seed: int, requests: int) -> list[Arrival]:
    """Requests whose domains alternate."""
    rng = np.random.default_rng(seed)
    arrivals = []
    for number in range(requests):
        domain = list(OUTPUT_TOKENS)[number % len(OUTPUT_TOKENS)]
        tokens = OUTPUT_TOKENS[domain] * rng.lognormal(0.0, 0.5)
        prompt, output = int(rng.integers(20, 80)), int(np.clip(tokens, 5, MAX_TOKENS))
        arrivals.append(Arrival(f"r{number}", 0.0, prompt, output, MAX_TOKENS, domain))
    return arrivals


def serve(
    arrivals: list[Arrival], replica: Cluster, seed: int, clients: int, make: MakePolicies
) -> tuple[float, Mapping[str, float]]:
    """Tokens per second: of all together, and of each request."""
    limits = Limits(max_batch=clients, max_waiting=clients, kv_tokens=KV_TOKENS)
    report = simulate(arrivals, replica, make, limits, clients=clients, seed=seed)
    return report.throughput, {
        request.arrival.name: request.tokens / request.latency_s for request in report.served
    }


def cluster(
    transport_s: float = TRANSPORT_S, scatters: bool = False, apart: bool = False
) -> Cluster:
    models: dict[tuple[str, str], DrafterModel] = {}
    for drafter, accepted in ACCEPTED.items():
        for domain, share in accepted.items():
            models[domain, drafter] = synthetic(share, persistence=0.3)
    for domain, (right, silent) in LOOKUP.items():
        curves = synthetic(right)
        models[domain, "suffix"] = DrafterModel(
            curves.confidence, curves.accepted, silent=silent, persistence=0.6
        )
    lookup = DrafterSpec("suffix", "suffix", None, call_s=LOOKUP_CALL_S)
    drafters = [DrafterSpec(name, name, cost, apart=apart) for name, cost in DRAFT.items()]
    drafters.append(lookup)
    memory, acceptance = KvMemory(KV_TOKENS), Acceptance(models)
    return Cluster(VERIFY, memory, drafters, acceptance, transport_s=transport_s, scatters=scatters)


def objectives() -> dict[str, MakePolicies]:
    return {objective: planner_policies(objective) for objective in OBJECTIVES}


def planner_policies(objective: str) -> MakePolicies:
    return named_policies("planner", "hedge", speculation_options={"objective": objective})


if __name__ == "__main__":
    main()

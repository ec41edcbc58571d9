"""What fairness gives and costs, in virtual time.

`python -m benchmarks.simulator.no_harm [--json FILE]`.

The zoo's mixed load as `benchmarks.serving.local` serves it, modelled: so a change of the planner
is judged by the same run to the last event, on a machine however busy. Costs, acceptances and what
a round with drafts takes besides were chosen so that 4 and 16 clients come out about as they were
measured on a quiet machine (docs/policies/planner.md). `--call-ms` is what each call to a host
takes to get there and back, and with `--scatters` only on average, as on a machine that others
use. Drafters share the verifier's processors, so they hardly read ahead, but with `--apart`.
Names: no_harm/CLIENTS/OBJECTIVE/{total,code,prose,tasks}; values are over plain decoding, domains
are medians of each request's own ratio, and no_harm/CLIENTS/to_throughput_objective is the fair
objective's total over that one's. Exits with 1 where a domain is below 0.97 under the fair
objective, or its total below 0.95 of the throughput objective's.
"""

import sys
from collections.abc import Mapping
from statistics import mean, median

import numpy as np

from actors.coordinator.settings import Limits, Policies
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.acceptance import Acceptance, DrafterModel, synthetic
from benchmarks.simulator.run import Cluster, DrafterSpec, MakePolicies, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from policies.catalogue import Calibrations, make_schedule, make_selection, make_speculation
from policies.cost import LinearCost

PROMISE, SHARE_OF_THROUGHPUT = 0.97, 0.95
OBJECTIVES = ("fair", "throughput")
KV_TOKENS = 1 << 20
MAX_TOKENS = 128
OUTPUT_TOKENS = {"code": 45, "prose": 20, "tasks": 70}
"""By domain, the median."""

VERIFY = LinearCost(alpha=1e-6, gamma=2.2e-4, delta=12.2e-3)
DRAFT = {
    "tiny": LinearCost(1.2e-7, 6e-5, 1.5e-4),
    "code": LinearCost(1.8e-7, 1.2e-4, 2.4e-4),
    "prose": LinearCost(2.0e-7, 1.2e-4, 2.0e-4),
}
LOOKUP_CALL_S = 2.5e-3
"""What a round in which drafters are asked takes besides: planning, orders, lookups, choosing."""
TRANSPORT_S = 4e-4
ACCEPTED = {
    "tiny": {"code": 0.40, "prose": 0.20, "tasks": 0.84},
    "code": {"code": 0.52, "prose": 0.22, "tasks": 0.15},
    "prose": {"code": 0.33, "prose": 0.36, "tasks": 0.18},
}
FOUND = {"code": (0.45, 0.23), "prose": (0.37, 0.27), "tasks": (0.58, 0.09)}
"""Of the suffix lookup in the zoo: how many tokens are right, and how often there is nothing."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--requests", type=int, default=144)
    arguments.add_argument("--call-ms", type=float, default=1e3 * TRANSPORT_S)
    arguments.add_argument("--scatters", action="store_true")
    arguments.add_argument("--apart", action="store_true", help="drafters have their own devices")
    chosen = arguments.parse_args()
    machine = cluster(chosen.call_ms / 1e3, chosen.scatters, chosen.apart)
    records, missed = [], []
    for clients in chosen.clients:
        runs = [compared(machine, seed, clients, chosen.requests) for seed in range(chosen.seeds)]
        for name in runs[0]:
            value = mean(run[name] for run in runs)
            records.append(Record(f"no_harm/{clients}/{name}", value, "x plain"))
            if name.startswith("fair") and value < PROMISE:
                missed.append(f"{clients}/{name} {value:.3f}, below {PROMISE}")
        fair, throughput = (
            mean(run[f"{objective}/total"] for run in runs) for objective in OBJECTIVES
        )
        share = fair / throughput
        name = f"no_harm/{clients}/to_throughput_objective"
        records.append(Record(name, fair, "x plain", throughput, share))
        if share < SHARE_OF_THROUGHPUT:
            missed.append(f"{clients}/total {share:.3f} of {throughput:.2f}")
    publish(records, chosen.json)
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


def compared(machine: Cluster, seed: int, clients: int, requests: int) -> dict[str, float]:
    """Over plain decoding, by OBJECTIVE/total and OBJECTIVE/DOMAIN."""
    arrivals = load(seed, requests)
    plain_total, plain = served(arrivals, machine, seed, clients, without_drafts)
    ratios = {}
    for objective in OBJECTIVES:
        total, speeds = served(arrivals, machine, seed, clients, drafting(objective))
        ratios[f"{objective}/total"] = total / plain_total
        for domain in OUTPUT_TOKENS:
            names = [one.name for one in arrivals if one.domain == domain]
            ratios[f"{objective}/{domain}"] = median(speeds[name] / plain[name] for name in names)
    return ratios


def load(seed: int, requests: int) -> list[Arrival]:
    """The domains in turn."""
    rng = np.random.default_rng(seed)
    arrivals = []
    for number in range(requests):
        domain = list(OUTPUT_TOKENS)[number % len(OUTPUT_TOKENS)]
        tokens = OUTPUT_TOKENS[domain] * rng.lognormal(0.0, 0.5)
        prompt, output = int(rng.integers(20, 80)), int(np.clip(tokens, 5, MAX_TOKENS))
        arrivals.append(Arrival(f"r{number}", 0.0, prompt, output, MAX_TOKENS, domain))
    return arrivals


def served(
    arrivals: list[Arrival], machine: Cluster, seed: int, clients: int, make: MakePolicies
) -> tuple[float, Mapping[str, float]]:
    """Tokens per second: of all together, and of each request."""
    limits = Limits(max_batch=clients, max_waiting=clients, kv_tokens=KV_TOKENS)
    report = simulate(arrivals, machine, make, limits, clients=clients, seed=seed)
    return report.throughput, {
        one.arrival.name: one.tokens / one.latency_s for one in report.served
    }


def cluster(
    transport_s: float = TRANSPORT_S, scatters: bool = False, apart: bool = False
) -> Cluster:
    accepts: dict[tuple[str, str], DrafterModel] = {}
    for drafter, accepted in ACCEPTED.items():
        for domain, share in accepted.items():
            accepts[domain, drafter] = synthetic(share, persistence=0.3)
    for domain, (right, silent) in FOUND.items():
        known = synthetic(right)
        accepts[domain, "suffix"] = DrafterModel(
            known.confidence, known.accepted, silent=silent, persistence=0.6
        )
    lookup = DrafterSpec("suffix", "suffix", None, call_s=LOOKUP_CALL_S)
    models = [DrafterSpec(name, name, cost, apart=apart) for name, cost in DRAFT.items()]
    drafters = [*models, lookup]
    memory, acceptance = KvMemory(KV_TOKENS), Acceptance(accepts)
    return Cluster(VERIFY, memory, drafters, acceptance, transport_s=transport_s, scatters=scatters)


def without_drafts(calibrations: Calibrations) -> Policies:
    speculation = make_speculation("off", {}, calibrations)
    return Policies(make_schedule("default"), make_selection("fixed"), speculation)


def drafting(objective: str) -> MakePolicies:
    def make(calibrations: Calibrations) -> Policies:
        planner = make_speculation("planner", {"objective": objective}, calibrations)
        return Policies(make_schedule("default"), make_selection("hedge"), planner)

    return make


if __name__ == "__main__":
    main()

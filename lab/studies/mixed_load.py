"""A model of the zoo's mixed load in `benchmarks.serving.local`, in virtual time.

Versions of a policy are compared on the same run, whatever else the machine does. Costs,
acceptances and the additional time of rounds with drafts were chosen so that results at 4 and 16
clients are about those measured on a quiet machine (lab/docs/mixed_load.md). Drafters share
the verifier's processors, so they hardly catch up in idle time, unless they are `apart`.
"""

from collections.abc import Mapping
from statistics import median

import numpy as np

from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import Acceptance, DrafterModel, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, MakePolicies, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.cost import ForwardCost

KV_TOKENS = 1 << 20
MAX_TOKENS = 128
OUTPUT_TOKENS = {"code": 45, "prose": 20, "tasks": 70}
"""Median by domain."""

VERIFY = ForwardCost(alpha=1e-6, gamma=2.2e-4, delta=12.2e-3)
DRAFT = {
    "tiny": ForwardCost(1.2e-7, 6e-5, 1.5e-4),
    "code": ForwardCost(1.8e-7, 1.2e-4, 2.4e-4),
    "prose": ForwardCost(2.0e-7, 1.2e-4, 2.0e-4),
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
"""The suffix lookup by domain: acceptance, and share of positions without a proposal."""

PLAIN, DEFAULT = named_policies("off", "fixed"), named_policies("planner", "hedge")


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


def cluster(apart: bool = False) -> Cluster:
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
    return Cluster(VERIFY, memory, drafters, acceptance, transport_s=TRANSPORT_S)

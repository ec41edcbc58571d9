"""How fast the simulator is: `python -m benchmarks.simulator [--requests N] [--json FILE]`.

Chains, 32 requests at once, some 200 output tokens each. Names: simulator/SPECULATION/...;
`reference` is the minute that 10,000 requests may take, in CPU time of this process.
"""

import time

from actors.coordinator.settings import Limits, Policies
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.acceptance import Acceptance, synthetic
from benchmarks.simulator.hardware import A100, LLAMA_7B, LLAMA_68M, roofline
from benchmarks.simulator.run import Cluster, DrafterSpec, MakePolicies, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Lengths, draw, poisson
from policies.catalogue import Calibrations, make_schedule, make_selection, make_speculation

BATCH = 32
KV_TOKENS = 100_000
SECONDS_PER_REQUEST = 60 / 10_000


def policies(speculation: str, selection: str, schedule: str) -> MakePolicies:
    def make(calibrations: Calibrations) -> Policies:
        return Policies(
            make_schedule(schedule),
            make_selection(selection),
            make_speculation(speculation, calibrations=calibrations),
        )

    return make


def measure(name: str, make_policies: MakePolicies, requests: int) -> list[Record]:
    cluster = Cluster(
        roofline(LLAMA_7B, A100),
        KvMemory(KV_TOKENS),
        [DrafterSpec("ssm", "ssm", roofline(LLAMA_68M, A100), capacity=BATCH)],
        Acceptance({("", "ssm"): synthetic(0.7)}),
    )
    arrivals = draw(poisson(18.0, requests, seed=0), 0, Lengths(longest=1024))
    limits = Limits(max_batch=BATCH, max_waiting=requests, kv_tokens=KV_TOKENS)
    begun = time.process_time()
    report = simulate(arrivals, cluster, make_policies, limits)
    spent = time.process_time() - begun
    reference = SECONDS_PER_REQUEST * requests
    per_round = 1e6 * spent / report.tally.request_rounds
    running = report.tally.request_rounds / report.tally.forwards
    return [
        Record(f"{name}/cpu", spent, "s", reference, spent / reference),
        Record(f"{name}/per_request_round", per_round, "µs"),
        Record(f"{name}/requests_per_forward", running, "requests"),
        *report.records(name),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=2_000)
    chosen = arguments.parse_args()
    settings = {
        "fixed": policies("fixed", "fixed", "fcfs"),
        "default": policies("planner", "hedge", "default"),
    }
    records = [
        record
        for name, make_policies in settings.items()
        for record in measure(f"simulator/{name}", make_policies, chosen.requests)
    ]
    publish(records, chosen.json)


if __name__ == "__main__":
    main()

"""Measures the speed of the simulator.

`python -m lab.studies.simulator_speed [--requests 2000] [--json FILE]`.

Chains, batches of 32 requests, some 200 output tokens each. Names: simulator/SPECULATION/...;
`reference` is the bound of a minute of CPU time for 10,000 requests.
"""

import time

from actors.coordinator.settings import Limits
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.acceptance import Acceptance, synthetic
from benchmarks.simulator.hardware import A100, LLAMA_7B, LLAMA_68M, roofline
from benchmarks.simulator.run import Cluster, DrafterSpec, MakePolicies, named_policies, simulate
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Lengths, draw, poisson

BATCH = 32
KV_TOKENS = 100_000
SECONDS_PER_REQUEST = 60 / 10_000


def measure(name: str, make_policies: MakePolicies, requests: int) -> list[Record]:
    cluster = Cluster(
        roofline(LLAMA_7B, A100),
        KvMemory(KV_TOKENS),
        [DrafterSpec("ssm", "ssm", roofline(LLAMA_68M, A100), capacity=BATCH)],
        Acceptance({("", "ssm"): synthetic(0.7)}),
    )
    arrivals = draw(poisson(18.0, requests, seed=0), 0, Lengths(longest=1024))
    limits = Limits(max_batch=BATCH, max_waiting=requests, kv_tokens=KV_TOKENS)
    started = time.process_time()
    report = simulate(arrivals, cluster, make_policies, limits)
    spent = time.process_time() - started
    reference = SECONDS_PER_REQUEST * requests
    per_round = 1e6 * spent / report.tally.request_rounds
    running = report.tally.request_rounds / report.tally.forwards
    return [
        Record.over(reference, f"{name}/cpu", spent, "s"),
        Record(f"{name}/per_request_round", per_round, "µs"),
        Record(f"{name}/requests_per_forward", running, "requests"),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=2_000)
    options = arguments.parse_args()
    settings = {
        "fixed": named_policies("fixed", "fixed", "fcfs"),
        "default": named_policies("planner", "hedge"),
    }
    records = [
        record
        for name, make_policies in settings.items()
        for record in measure(f"simulator/{name}", make_policies, options.requests)
    ]
    publish(records, options.json)


if __name__ == "__main__":
    main()

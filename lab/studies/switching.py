"""What Spin's fast switching is worth: idle drafters read ahead for requests that may come to them.

`python -m lab.studies.switching [--requests N] [--json FILE]`.

The mixed load of lab/studies/mixed_load.py at 8 clients with short and with long prompts,
in virtual time. Arms: drafters that never read ahead, that share the verifier's processors (0.5% of
the time is theirs to read ahead), and that have their own; never reading is measured on the same
processors as the arm. Names: switching/SELECTION/PROMPTS/ARM/throughput (`reference`: never reading
ahead), .../hit_rate (share of switches for which something was read ahead), .../saved and
.../spent: of the run's time, what reading would have taken at the switches, and what reading ahead
took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from actors.coordinator.settings import Limits, Policies
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.run import MakePolicies, named_policies, simulate
from benchmarks.simulator.run_report import Report
from benchmarks.simulator.workload import Arrival
from lab.studies.mixed_load import DEFAULT, KV_TOKENS, cluster, workload
from policies.catalogue import Calibrations

CLIENTS = 8
LONGER = {"short": 1, "long": 16}
"""How many times as long prompts are as those of the mixed load."""
SELECTIONS: Mapping[str, MakePolicies] = {
    "hedge": DEFAULT,
    "lbss": named_policies("planner", "lbss"),
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=240)
    options = arguments.parse_args()
    records = []
    for name, make in SELECTIONS.items():
        for prompts, factor in LONGER.items():
            requests = [
                replace(one, prompt_tokens=factor * one.prompt_tokens)
                for one in workload(1, options.requests)
            ]
            for apart in (False, True):
                arm = "own_processors" if apart else "shared_processors"
                records += compare(f"switching/{name}/{prompts}/{arm}", requests, make, apart)
    publish(records, options.json)


def compare(
    name: str, requests: Sequence[Arrival], make: MakePolicies, apart: bool
) -> list[Record]:
    def run(policies: MakePolicies) -> Report:
        limits = Limits(max_batch=CLIENTS, max_waiting=CLIENTS, kv_tokens=KV_TOKENS)
        return simulate(requests, cluster(apart), policies, limits, clients=CLIENTS)

    never, ahead = run(_never_ahead(make)), run(make)
    tally, duration_s = ahead.tally, ahead.duration_s
    hit_rate = tally.prepared_switches / max(1, tally.switches)
    return [
        Record.over(never.throughput, f"{name}/throughput", ahead.throughput, "tokens/s"),
        Record(f"{name}/hit_rate", hit_rate, "of switches"),
        Record(f"{name}/saved", tally.saved_s / duration_s, "of the time"),
        Record(f"{name}/spent", tally.idle_read_s / duration_s, "of the time"),
    ]


def _nowhere(request: str) -> str | None:
    return None


def _never_ahead(make: MakePolicies) -> MakePolicies:
    def without(calibrations: Calibrations) -> Policies:
        policies = make(calibrations)
        policies.selection.likely_next = _nowhere  # type: ignore[method-assign]  # of this run alone
        return policies

    return without


if __name__ == "__main__":
    main()

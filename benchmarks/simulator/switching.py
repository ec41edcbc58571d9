"""What Spin's fast switching is worth: idle drafters read ahead for requests that may come to them.

`python -m benchmarks.simulator.switching [--requests N] [--json FILE]`.

The mixed load of benchmarks/simulator/mixed_load.py at 8 clients with short and with long prompts,
in virtual time. Arms: drafters that never read ahead, that share the verifier's processors (0.5% of
the time is theirs to read ahead), and that have their own; never reading is measured on the same
processors as the arm. Names: switching/SELECTION/PROMPTS/ARM/throughput (`reference`: never reading
ahead), .../hit_rate (share of switches for which something was read ahead), .../saved and
.../spent: of the run's time, what reading would have taken at the switches, and what reading ahead
took.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from actors.coordinator.events import CaughtUp, Event, Switched
from actors.coordinator.settings import Limits, Policies
from benchmarks.report import Record, parser, publish
from benchmarks.simulator.mixed_load import DEFAULT, KV_TOKENS, cluster, workload
from benchmarks.simulator.run import MakePolicies, named_policies, simulate
from benchmarks.simulator.workload import Arrival
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


@dataclass(slots=True)
class Switches:
    """An observer that adds up what reading ahead took and saved."""

    switches: int = 0
    prepared: int = 0
    saved_s: float = 0.0
    spent_s: float = 0.0

    def observe(self, event: Event) -> None:
        if isinstance(event, CaughtUp):
            self.spent_s += event.seconds
        elif isinstance(event, Switched):
            self.switches += 1
            self.prepared += event.read_ahead > 0
            self.saved_s += event.saved_s


def compare(
    name: str, requests: Sequence[Arrival], make: MakePolicies, apart: bool
) -> list[Record]:
    def run(policies: MakePolicies, observe: Callable[[Event], None]) -> tuple[float, float]:
        limits = Limits(max_batch=CLIENTS, max_waiting=CLIENTS, kv_tokens=KV_TOKENS)
        report = simulate(
            requests, cluster(apart), policies, limits, clients=CLIENTS, observe=observe
        )
        return report.throughput, report.duration_s

    seen = Switches()
    never, _ = run(_never_ahead(make), lambda _event: None)
    throughput, duration_s = run(make, seen.observe)
    return [
        Record.over(never, f"{name}/throughput", throughput, "tokens/s"),
        Record(f"{name}/hit_rate", seen.prepared / max(1, seen.switches), "of switches"),
        Record(f"{name}/saved", seen.saved_s / duration_s, "of the time"),
        Record(f"{name}/spent", seen.spent_s / duration_s, "of the time"),
    ]


def _nowhere(request: str) -> str | None:
    return None


def _never_ahead(make: MakePolicies) -> MakePolicies:
    def without(calibrations: Calibrations) -> Policies:
        policies = make(calibrations)
        policies.selection.likely_next = _nowhere  # type: ignore[method-assign]
        return policies

    return without


if __name__ == "__main__":
    main()

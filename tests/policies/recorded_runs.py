"""The runs whose decisions are recorded: `python -m tests.policies.recorded_runs` rewrites them.

Ours at three loads, drafters on the verifier's processors or on their own, and two cells of each
paper: simulated, so that the same code decides alike to the last event.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.run import simulate
from lab.papers.cells import cell
from lab.papers.experiment import build_experiment
from lab.papers.run_observer import RunObserver
from lab.studies.mixed_load import DEFAULT, KV_TOKENS, cluster, workload
from policies.catalogue import Calibrations
from tests.policies.decisions import ROUNDING, Run, Through, decisions_of

FOLDER = Path(__file__).parent / "recorded"
NO_TRACES = Path()
REQUESTS = 24
"""How many of a paper's cell are served: its first ones."""
DEAR_SWITCHES: dict[str, str | float] = {
    "machine": "dear_switches",
    "dataset": "mbpp",
    "workload": "burst",
    "requests": 30,
}
"""So dear that schedules avoid them."""
BURSTS: dict[str, str | float] = {
    "machine": "roofline_7b_l40",
    "dataset": "mixed",
    "workload": "trace_1",
    "rate": 3.0,
}


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """The load of lab/studies/mixed_load.py under the default policies."""

    clients: int
    apart: bool
    requests: int

    def __call__(self, through: Through) -> None:
        limits = Limits(max_batch=self.clients, max_waiting=self.clients, kv_tokens=KV_TOKENS)
        simulate(
            workload(0, self.requests),
            cluster(apart=self.apart),
            lambda calibrations: through(DEFAULT(calibrations)),
            limits,
            clients=self.clients,
        )


@dataclass(frozen=True, slots=True)
class PaperCell:
    paper: str
    arm: str
    case: Mapping[str, str | float]

    def __call__(self, through: Through) -> None:
        experiment = build_experiment(cell(self.paper, self.arm, self.case), NO_TRACES)
        observer = RunObserver()

        def make(calibrations: Calibrations) -> Policies:
            return through(experiment.policies(calibrations, observer))

        simulate(
            experiment.requests[:REQUESTS],
            experiment.cluster,
            make,
            experiment.limits,
            clients=experiment.clients,
            pipeline=experiment.pipeline,
        )


RUNS: dict[str, Run] = {
    **{
        f"mixed_load_{clients}{'_apart' if apart else ''}": MixedLoad(clients, apart, requests)
        for clients, requests in ((1, 12), (4, 24), (16, 48))
        for apart in (False, True)
    },
    "adaserve": PaperCell(
        "adaserve",
        "adaserve",
        {"machine": "llama", "dataset": "peak", "workload": "fluctuating", "rate": 3.0},
    ),
    "adaserve_planner": PaperCell(
        "adaserve", "planner", {"machine": "qwen", "dataset": "peak", "workload": "fluctuating"}
    ),
    "specserve": PaperCell("specserve", "specserve", BURSTS),
    "specserve_planner": PaperCell("specserve", "planner", BURSTS),
    "spin": PaperCell("spin", "spin", {"machine": "7b", "dataset": "mix", "workload": "batch_8"}),
    "spin_lbss": PaperCell(
        "spin", "lbss", {"machine": "13b", "dataset": "mix", "workload": "batch_8"}
    ),
    "laps_sd": PaperCell("laps_sd", "dear_laps_sd", DEAR_SWITCHES),
    "laps_sd_default": PaperCell("laps_sd", "dear_default", DEAR_SWITCHES),
}


def recorded(name: str) -> list[str]:
    return (FOLDER / f"{name}.txt").read_text().splitlines()


def main() -> None:
    for name, run in RUNS.items():
        lines = decisions_of(run)
        if decisions_of(run, ROUNDING) != lines:
            sys.exit(f"{name}: rounding decides between equals; take another seed or load")
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(f"{name:24} {len(lines):6} decisions")


if __name__ == "__main__":
    main()

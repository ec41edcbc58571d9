"""Measures what each phase of a replica's start takes of the processor.

`python -m lab.micro.replica_start [--config cluster.yaml] [--json FILE]`; the second run is
that of a machine which has served before. All models are loaded in this process. CPU seconds, which
hardly depend on what else the machine does. Names: replica_start/PHASE.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import process_time

import yaml

from benchmarks.report import Record, parser, publish

IMPORTS = {
    "import_serve": ("ray", "ray.serve"),
    "import_app": ("deployments.app", "deployments.replica.deployment"),
    "import_torch": ("torch",),
    "import_models": ("deployments.replica.host_specs", "deployments.replica.service"),
}
"""Modules that are imported in this order, by the name of their phase."""


class Phases:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self._begun = process_time()

    def end(self, name: str) -> None:
        now = process_time()
        self.records.append(Record(f"replica_start/{name}", now - self._begun, "CPU s"))
        self._begun = now


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--config", type=Path, default=Path("cluster.yaml"))
    options = arguments.parse_args()
    phases = Phases()
    for name, modules in IMPORTS.items():
        for module in modules:
            import_module(module)
        phases.end(name)
    asyncio.run(start(options.config, phases.end))
    total = sum(record.value for record in phases.records)
    publish([*phases.records, Record("replica_start/total", total, "CPU s")], options.json)
    sys.stdout.flush()
    os._exit(0)  # threads of the hosts would be waited for


async def start(path: Path, end_phase: Callable[[str], None]) -> None:
    """What deployments/replica/deployment.py does, with hosts in this process."""
    from actors.hosts.fleet import start_fleet
    from cluster.cache import cache_dir
    from cluster.config import AppConfig
    from cluster.placement import plan
    from deployments.replica.host_specs import MEASURE_S, drafter_specs, limits_of, target_spec
    from deployments.replica.service import Service

    (application,) = yaml.safe_load(path.read_text())["applications"]
    config = AppConfig.model_validate(application["args"])
    placement = plan(config)
    fleet = await start_fleet(
        replace(target_spec(config, placement), placement="inline"),
        [replace(spec, placement="inline") for spec in drafter_specs(config, placement)],
        cache_dir() / "profiles",
        limits=limits_of(config),
        measure_s=MEASURE_S,
    )
    end_phase("load")
    service = Service(config, fleet)
    end_phase("coordinator")
    await service.warm_up()
    end_phase("warm_up")
    await service.coordinator.close()


if __name__ == "__main__":
    main()

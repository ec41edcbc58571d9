"""What metrics and the playground's strip cost, in turns with neither, in one process.

`python -m benchmarks.serving.watching [--clients 4] [--segments 24] [--json FILE]`.

Each segment serves the same requests: observed by nothing (`off`), by a replica's metrics, exported
to Ray once a second and rendered for a scrape every five (`metrics`), and by the strip too, with
its numbers read once a second (`strip`). `share` is the time inside that code over the segment's:
goodput's scatter hides it. `reference` of goodput is `off`, or `metrics` for the strip. Exits with
status 1 where the shares of metrics together, or that of the strip, are above 1%.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import ray
import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, load
from actors.hosts.specs import DrafterSpec, TargetSpec
from benchmarks.processes import end_after_ray
from benchmarks.report import Record, paired_ratio, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.local import KV_TOKENS, drafter_spec, reset_lookups, serve
from benchmarks.serving.requests import Request, mixed_requests
from cluster.zoo.paths import cache_dir, inflated_target
from deployments.ingress.metrics_text import prometheus_text
from deployments.replica.live import LONGEST_S, LiveNumbers
from deployments.replica.metrics import Metrics
from policies.catalogue import make_schedule, make_selection, make_speculation

BOUND = 0.01
_PERIOD_S = 1.0
_LOAD = {"running": 4.0, "waiting": 0.0}
_SCRAPES = 5
"""Every so many periods: oftener than Prometheus by default."""
MODES = ("off", "metrics", "strip")
METRICS = ("observe", "export", "scrape")
PARTS = (*METRICS, "strip")


@dataclass(frozen=True)
class Segment:
    goodput: float
    shares: Mapping[str, float]
    """Of its time, that inside each part of watching."""


class Watched:
    """A replica's observers, and the time inside them."""

    def __init__(self, fleet: Fleet) -> None:
        drafters = {lane.view.name: lane.view.drafter for lane in fleet.lanes}
        self.mode = MODES[0]
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._read = 0
        self._metrics = Metrics("one", drafters, {})
        self._live = LiveNumbers("one", [lane.view for lane in fleet.lanes])

    def observe(self, event: Event) -> None:
        if self.mode == "off":
            return
        self._timed("observe", lambda: self._metrics.observe(event))
        if self.mode == "strip":
            self._timed("strip", lambda: self._live.observe(event))

    async def every_second(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(_PERIOD_S)

    def read(self) -> None:
        if self.mode == "off":
            return
        self._timed("export", self._metrics.export)
        self._read += 1
        if self._read % _SCRAPES == 0:
            self._timed("scrape", lambda: prometheus_text(self._metrics.families()))
        if self.mode == "strip":
            now = asyncio.get_running_loop().time()
            self._timed(
                "strip", lambda: self._live.read(LONGEST_S, now, _LOAD, None).model_dump_json()
            )

    def _timed(self, part: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        self.seconds[part] += time.perf_counter() - started


async def compare(
    fleet: Fleet, drafters: Sequence[DrafterSpec], options: argparse.Namespace
) -> list[Record]:
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    policies = Policies(
        make_schedule("default"),
        make_selection("hedge"),
        make_speculation("planner", {}, estimates.calibrations),
    )
    watched = Watched(fleet)
    limits = Limits(max_batch=options.clients, max_waiting=options.clients, kv_tokens=KV_TOKENS)
    coordinator = Coordinator(
        fleet.verifier, fleet.lanes, policies, estimates, limits, observe=watched.observe
    )
    names = itertools.count()

    async def segment(requests: Sequence[Request], mode: str) -> Segment:
        reset_lookups(fleet.lanes, drafters)
        watched.mode, watched.seconds = mode, dict.fromkeys(PARTS, 0.0)
        reading = asyncio.create_task(watched.every_second())
        served, seconds = await closed_loop(
            requests,
            options.clients,
            lambda _, request: serve(coordinator, str(next(names)), request, True),
        )
        reading.cancel()
        shares = {part: spent / seconds for part, spent in watched.seconds.items()}
        return Segment(sum(one.tokens for one in served) / seconds, shares)

    for mode in MODES:  # warms up
        await segment(mixed_requests(options.requests, seed=2), mode)
    found: dict[str, list[Segment]] = {mode: [] for mode in MODES}
    requests = mixed_requests(options.requests * options.segments)
    for number in range(options.segments):
        part = requests[number * options.requests : (number + 1) * options.requests]
        begin = number % len(MODES)
        for mode in MODES[begin:] + MODES[:begin]:
            found[mode].append(await segment(part, mode))
    await coordinator.close()
    return report(found)


def report(found: dict[str, list[Segment]]) -> list[Record]:
    records = []
    for mode, reference in (("metrics", "off"), ("strip", "metrics")):
        ours, theirs = ([one.goodput for one in found[name]] for name in (mode, reference))
        ratio = paired_ratio(ours, theirs)
        print(f"goodput, {mode} over {reference}: {ratio}")
        goodput = Record(f"watching/{mode}", mean(ours), "tokens/s", mean(theirs), ratio.median)
        records += [
            goodput,
            Record(f"watching/{mode}/low", ratio.low, "ratio"),
            Record(f"watching/{mode}/high", ratio.high, "ratio"),
        ]
    for part in PARTS:
        segments = found["strip" if part == "strip" else "metrics"]
        share = mean(one.shares[part] for one in segments)
        records.append(Record(f"watching/share/{part}", 100 * share, "%"))
    return records


def within(records: Sequence[Record]) -> bool:
    shares = {one.name.rpartition("/")[2]: one.value / 100 for one in records if one.unit == "%"}
    return max(sum(shares[part] for part in METRICS), shares["strip"]) <= BOUND


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--requests", type=int, default=8, help="in each segment")
    arguments.add_argument("--segments", type=int, default=24, help="of each mode")
    arguments.add_argument("--params", type=int, default=90_000_000, help="of the target")
    arguments.add_argument("--drafters", nargs="*", default=["tiny", "tasks", "suffix"])
    options = arguments.parse_args()
    torch.set_num_threads(2)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    target = TargetSpec(inflated_target(options.params), torch.bfloat16, KV_TOKENS)
    drafters = [drafter_spec(name) for name in options.drafters]
    fleet = load(target, drafters, cache_dir() / "profiles")
    records = asyncio.run(compare(fleet, drafters, options))
    publish(records, options.json)
    ray.shutdown()
    end_after_ray(not within(records))


if __name__ == "__main__":
    main()

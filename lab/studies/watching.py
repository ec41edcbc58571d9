"""What metrics and the playground's strip cost, in turns with none of them, in one process.

`python -m lab.studies.watching [--modes off metrics] [--seconds 300] [--json FILE]`.

Each segment serves the same requests: observed by nothing (`off`), by a replica's metrics, exported
to Ray once a second and rendered for a scrape every five (`metrics`), by these and the strip, with
its numbers read once a second (`strip`). Policies are fixed, so that all serve
the same rounds. Compared are goodput, the time of the same rounds, which scatters less but leaves
out what happens between rounds once a second, and the process's CPU time per token. `share` is the
time inside that code over the segment's. Exits with status 1 where the shares of metrics together,
or that of the strip, are above 1%.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import ray
import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, load
from actors.hosts.specs import DrafterSpec, TargetSpec
from benchmarks.processes import end_after_ray
from benchmarks.report import Ratio, Record, paired_ratio, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.local import KV_TOKENS, drafter_spec, reset_lookups, serve
from benchmarks.serving.requests import Request, mixed_requests
from cluster.built_in_models import inflated_target
from cluster.cache import cache_dir
from deployments.ingress.watching import prometheus_text
from deployments.replica.live import LONGEST_S, LiveNumbers
from deployments.replica.metrics import Metrics
from policies.catalogue import make_schedule, make_selection, make_speculation

BOUND = 0.01
_PERIOD_S = 1.0
_LOAD = {"running": 4.0, "waiting": 0.0}
_SCRAPES = 5
"""Every so many periods: oftener than Prometheus by default."""
REFERENCES = {"metrics": "off", "strip": "metrics"}
"""Each mode, and what it is compared with."""
MODES = ("off", *REFERENCES)
METRICS = ("observe", "export", "scrape")
PARTS = (*METRICS, "strip")
_FEWEST = 20
"""Pairs of segments for an interval."""


@dataclass(frozen=True)
class Segment:
    goodput: float
    tokens_per_cpu_s: float
    rounds_s: Sequence[float]
    """From each forward pass's end to the next one's."""
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
        self.ends_s: list[float] = []
        """Of forward passes."""

    def begin(self, mode: str) -> None:
        self.mode, self.seconds, self.ends_s = mode, dict.fromkeys(PARTS, 0.0), []

    def observe(self, event: Event) -> None:
        if isinstance(event, Verified):
            self.ends_s.append(event.at_s)
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
        make_selection("fixed"),
        make_speculation("fixed", {}, estimates.calibrations),
    )
    watched = Watched(fleet)
    limits = Limits(max_batch=options.clients, max_waiting=options.clients, kv_tokens=KV_TOKENS)
    coordinator = Coordinator(
        fleet.verifier, fleet.lanes, policies, estimates, limits, observe=watched.observe
    )
    names = itertools.count()

    async def segment(requests: Sequence[Request], mode: str) -> Segment:
        reset_lookups(fleet.lanes, drafters)
        watched.begin(mode)
        reading = asyncio.create_task(watched.every_second())
        cpu_s = time.process_time()
        served, seconds = await closed_loop(
            requests,
            options.clients,
            lambda _, request: serve(coordinator, str(next(names)), request, True),
        )
        cpu_s = time.process_time() - cpu_s
        reading.cancel()
        tokens = sum(one.tokens for one in served)
        shares = {part: spent / seconds for part, spent in watched.seconds.items()}
        rounds_s = [float(gap) for gap in np.diff(watched.ends_s)]
        return Segment(tokens / seconds, tokens / cpu_s, rounds_s, shares)

    modes = tuple(options.modes)
    for mode in modes:  # warms up
        await segment(mixed_requests(options.requests, seed=2), mode)
    found: dict[str, list[Segment]] = {mode: [] for mode in modes}
    requests = mixed_requests(options.requests * options.segments)
    started = time.monotonic()
    for number in range(options.segments):
        if time.monotonic() - started > options.seconds:
            break
        part = requests[number * options.requests : (number + 1) * options.requests]
        begin = number % len(modes)
        for mode in modes[begin:] + modes[:begin]:
            found[mode].append(await segment(part, mode))
    await coordinator.close()
    return report(found)


def report(found: Mapping[str, Sequence[Segment]]) -> list[Record]:
    records = []
    for mode, reference in REFERENCES.items():
        if mode not in found or reference not in found:
            continue
        ours, theirs = found[mode], found[reference]
        print(f"{mode} over {reference}, {len(ours)} pairs:")
        paired = list(zip(ours, theirs, strict=True))
        compared = {
            "goodput": [our.goodput / their.goodput for our, their in paired],
            "speed of equal rounds": _speeds_of_rounds(paired),
            "tokens per CPU second": [
                our.tokens_per_cpu_s / their.tokens_per_cpu_s for our, their in paired
            ],
        }
        for name, ratios in compared.items():
            if len(ratios) < _FEWEST:
                print(f"  {name}: {len(ratios)} pairs are too few, take more --seconds")
                continue
            ratio = paired_ratio(ratios, [1.0] * len(ratios))
            print(f"  {name}: {ratio}: {judged(ratio)}")
            place = f"watching/{mode}/{name.lower().replace(' ', '_')}"
            bounds = (("", ratio.median), ("/low", ratio.low), ("/high", ratio.high))
            records += [Record(place + end, value, "ratio") for end, value in bounds]
    for part in PARTS:
        segments = found.get(part if part in MODES else "metrics", ())
        if segments:
            share = mean(one.shares[part] for one in segments)
            records.append(Record(f"watching/share/{part}", 100 * share, "%"))
    return records


def _speeds_of_rounds(paired: Sequence[tuple[Segment, Segment]]) -> list[float]:
    """Of the pairs of segments with as many rounds, the middle of these rounds' ratios."""
    return [
        float(np.median(np.array(their.rounds_s) / np.array(our.rounds_s)))
        for our, their in paired
        if len(our.rounds_s) == len(their.rounds_s) > 0
    ]


def judged(ratio: Ratio) -> str:
    """Whether at most BOUND is lost, as far as the interval tells."""
    if ratio.low >= 1 - BOUND:
        return f"loses at most {BOUND:.0%}"
    if ratio.high < 1 - BOUND:
        return f"loses more than {BOUND:.0%}"
    return f"does not tell whether it loses {BOUND:.0%}"


def within(records: Sequence[Record]) -> bool:
    shares = {one.name.rpartition("/")[2]: one.value / 100 for one in records if one.unit == "%"}
    return max(sum(shares.get(part, 0.0) for part in METRICS), shares.get("strip", 0.0)) <= BOUND


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--requests", type=int, default=4, help="in each segment")
    arguments.add_argument("--segments", type=int, default=200, help="of each mode, at most")
    arguments.add_argument(
        "--seconds", type=float, default=300.0, help="after which no turn begins any more"
    )
    arguments.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
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

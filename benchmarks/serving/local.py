"""The zoo served in one process.

`python -m benchmarks.serving.local [--clients 1 4 16] [--json FILE]`.

Closed-loop clients send the same held-out requests decoded plainly and with speculation, in
alternating segments of one run; with the planner once more under its throughput objective. Names:
local/CLIENTS/..., that objective's local/CLIENTS/throughput/...; `reference` is plain decoding, but
for local/CLIENTS/to_throughput_objective that objective's goodput.
"""

import argparse
import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.hosts.fleet import Fleet, load
from actors.hosts.inline import DirectDrafter
from actors.hosts.loading import make_lookup
from actors.hosts.specs import DrafterSpec, TargetSpec
from benchmarks.report import Record, paired_ratio, parser, publish
from benchmarks.serving.requests import Request, mixed_requests
from cluster.zoo.paths import DRAFTERS, cache_dir, inflated_target, model_path
from engine.sampling.params import SamplingParams
from policies.catalogue import make_schedule, make_selection, make_speculation
from policies.microbatch import MicroBatchParams

PLAIN, DRAFTED, THROUGHPUT = "plain", "drafted", "throughput"
KV_TOKENS = 32_768
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Served:
    domain: str
    tokens: int
    ttft_s: float
    seconds: float
    """From submission to the last token."""

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """The same requests, served one way."""

    served: list[Served]
    seconds: float
    events: list[Event]

    @property
    def goodput(self) -> float:
        return sum(one.tokens for one in self.served) / self.seconds


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument(
        "--requests", type=int, default=24, help="in each segment, and at least 4 for each client"
    )
    arguments.add_argument("--segments", type=int, default=3, help="of each way")
    arguments.add_argument("--params", type=int, default=90_000_000, help="of the target")
    arguments.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target"
    )
    arguments.add_argument("--drafters", nargs="*", default=["tiny", "code", "prose", "suffix"])
    arguments.add_argument("--selection", default="hedge")
    arguments.add_argument("--speculation", default="planner")
    arguments.add_argument("--schedule", default="default")
    chosen = arguments.parse_args()
    torch.set_num_threads(2)
    dtype = getattr(torch, chosen.dtype)
    target = TargetSpec(inflated_target(chosen.params), dtype, KV_TOKENS)
    drafters = [drafter(name) for name in chosen.drafters]
    fleet = load(target, drafters, cache_dir() / "profiles")
    records = asyncio.run(compare(fleet, drafters, chosen))
    publish(records, chosen.json)


def drafter(name: str) -> DrafterSpec:
    if name in DRAFTERS:
        return DrafterSpec(name, checkpoint=model_path(name))
    if name == "ngram":
        return DrafterSpec(name, kind="ngram")
    if name == "suffix":
        return DrafterSpec(name, kind="suffix")
    raise SystemExit(f"--drafters: no {name!r}; there are {', '.join(DRAFTERS)}, ngram, suffix")


def forget_answers(lanes: Sequence[Lane], drafters: Sequence[DrafterSpec]) -> None:
    """New lookups: each way is asked the same, and must not find what another one was answered."""
    specs = {spec.name: spec for spec in drafters}
    for lane in lanes:
        if isinstance(lane.host, DirectDrafter):
            lane.host.drafter = make_lookup(specs[lane.view.drafter])


async def compare(
    fleet: Fleet, drafters: Sequence[DrafterSpec], chosen: argparse.Namespace
) -> list[Record]:
    events: list[Event] = []
    names = itertools.count()
    largest = max(chosen.clients)
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    schedule = make_schedule(chosen.schedule)

    def policies(**options: str) -> Policies:
        calibrations = estimates.calibrations
        speculation = make_speculation(chosen.speculation, options, calibrations)
        return Policies(schedule, make_selection(chosen.selection), speculation)

    drafting = {DRAFTED: policies()}
    if chosen.speculation == "planner":
        drafting[THROUGHPUT] = policies(objective="throughput")
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        drafting[DRAFTED],
        estimates,
        Limits(max_batch=largest, max_waiting=largest, kv_tokens=KV_TOKENS),
        observe=events.append,
    )

    async def segment(requests: Sequence[Request], clients: int, way: str) -> Segment:
        events.clear()
        forget_answers(fleet.lanes, drafters)
        if way in drafting:
            coordinator.use(drafting[way], MicroBatchParams())
        waiting = list(enumerate(requests))
        served: dict[int, Served] = {}

        async def client() -> None:
            while waiting:
                number, request = waiting.pop(0)
                name = str(next(names))
                served[number] = await serve(coordinator, name, request, way in drafting)

        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(client() for _ in range(clients)))
        seconds = asyncio.get_running_loop().time() - begun
        return Segment([served[n] for n in sorted(served)], seconds, list(events))

    for way in drafting:  # learns and compiles
        await segment(mixed_requests(chosen.requests, seed=2), largest, way)
    ways = [PLAIN, *drafting]
    records = []
    for clients in chosen.clients:
        # With fewer a segment would be one wave and its end, at the pace of the longest request.
        count = max(chosen.requests, 4 * clients)
        requests = mixed_requests(count * chosen.segments)
        served: dict[str, list[Segment]] = {way: [] for way in ways}
        for number in range(chosen.segments):
            part = requests[number * count : (number + 1) * count]
            first = number % len(ways)
            for way in ways[first:] + ways[:first]:
                served[way].append(await segment(part, clients, way))
        records += report(f"local/{clients}", served[PLAIN], served[DRAFTED])
        if THROUGHPUT in served:
            ours, best = (mean(s.goodput for s in served[way]) for way in (DRAFTED, THROUGHPUT))
            name = f"local/{clients}/to_throughput_objective"
            records.append(Record(name, ours, "tokens/s", best, ours / best))
            records += by_domain(f"local/{clients}/throughput", served[PLAIN], served[THROUGHPUT])
    await coordinator.close()
    return records


async def serve(coordinator: Coordinator, name: str, request: Request, speculate: bool) -> Served:
    clock = asyncio.get_running_loop().time
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    begun = clock()
    first_s, tokens = 0.0, 0
    async for commit in coordinator.submit(name, request.prompt, params, speculate=speculate):
        first_s = first_s or clock() - begun
        tokens += len(commit.token_ids)
    return Served(request.domain, tokens, first_s, clock() - begun)


def report(name: str, plain: Sequence[Segment], drafted: Sequence[Segment]) -> list[Record]:
    ours = [one for segment in drafted for one in segment.served]
    theirs = [one for segment in plain for one in segment.served]
    goodput, reference = (mean(s.goodput for s in segments) for segments in (drafted, plain))
    records = [
        Record(f"{name}/goodput", goodput, "tokens/s", reference, goodput / reference),
        _compared(f"{name}/ttft_p50", [s.ttft_s for s in ours], [s.ttft_s for s in theirs]),
    ]
    records += by_domain(name, plain, drafted)
    forwards = [e for segment in drafted for e in segment.events if isinstance(e, Verified)]
    rounds = [outcome for forward in forwards for outcome in forward.outcomes]
    with_drafts = [outcome for outcome in rounds if outcome.drafted]
    busy = sum(forward.seconds for forward in forwards)
    idle = sum(forward.idle_s for forward in forwards)
    records += [
        Record(f"{name}/tokens_per_round", mean(o.committed for o in rounds), "tokens"),
        Record(f"{name}/drafted_per_round", mean(o.drafted for o in rounds), "tokens"),
        Record(
            f"{name}/acceptance",
            sum(o.accepted for o in with_drafts) / max(1, sum(o.drafted for o in with_drafts)),
            "share",
        ),
        Record(f"{name}/bubbles", idle / (busy + idle), "share"),
    ]
    return records


def by_domain(name: str, plain: Sequence[Segment], drafted: Sequence[Segment]) -> list[Record]:
    """Speeds of requests; the ratio is the median of each request's own."""
    ours = [one for segment in drafted for one in segment.served]
    theirs = [one for segment in plain for one in segment.served]
    records = []
    for domain in sorted({one.domain for one in ours}):
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.domain == domain]
        speeds = (
            [1 / a.seconds_per_token for a, _ in pairs],
            [1 / b.seconds_per_token for _, b in pairs],
        )
        ratio = paired_ratio(*speeds)
        records.append(
            Record(f"{name}/{domain}", mean(speeds[0]), "tokens/s", mean(speeds[1]), ratio.median)
        )
    return records


def _compared(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Record:
    return Record(name, median(ours), "s", median(theirs), median(ours) / median(theirs))


if __name__ == "__main__":
    main()

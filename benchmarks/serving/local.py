"""Measures goodput, TTFT and domains' speeds with speculation over plain decoding, in one process.

`python -m benchmarks.serving.local [--clients 1 4 16] [--speculation POLICY ...] [--json FILE]`.

Closed-loop clients send the same held-out requests in alternating segments: plain, and with each
speculation policy (`planner`, `fixed:length=4`). `--model MODEL --data DIR`: the real prompts of
benchmarks.real to a real target instead of the zoo's. Names: local/CLIENTS/... of the first policy,
local/CLIENTS/POLICY/... of each other; `reference` is plain decoding, of local/CLIENTS/over/POLICY,
the first policy's goodput, the other's.
"""

import argparse
import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.hosts.direct import DirectDrafter, make_lookup
from actors.hosts.fleet import Fleet, start_fleet
from benchmarks.real.prompts import real_prompts
from benchmarks.report import Record, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.speculation_choice import SpeculationChoice, add_choices
from cluster.built_in_models import DRAFTERS
from cluster.cache import cache_dir
from cluster.config import DrafterConfig, TargetConfig
from cluster.config.drafter_kinds import LOOKUPS
from engine.sampling.params import SamplingParams
from policies.catalogue import make_schedule, make_selection, make_speculation
from policies.microbatch import MicroBatchParams

PLAIN = "plain"
"""Among the modes compared, the one without drafts."""
POLICIES = ("planner", "specserve")
COPIES = ("int4", "int8")
KV_TOKENS = 32_768
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One served request."""

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
    """A batch of requests, served in one mode."""

    served: list[RequestTiming]
    seconds: float
    events: list[Event]

    @property
    def goodput(self) -> float:
        return sum(request.tokens for request in self.served) / self.seconds


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument(
        "--requests", type=int, default=24, help="in each segment, and at least 4 for each client"
    )
    arguments.add_argument("--segments", type=int, default=3, help="of each mode")
    arguments.add_argument("--model", help="as target.model; by default the zoo's, inflated")
    arguments.add_argument("--data", type=Path, help="of --model: as for benchmarks.real")
    arguments.add_argument("--params", type=int, default=90_000_000, help="of the zoo's target")
    arguments.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target"
    )
    arguments.add_argument(
        "--drafters",
        nargs="*",
        default=["tiny", "code", "prose", "suffix"],
        help="of the zoo, lookups, or copies of the target: int4, int8",
    )
    arguments.add_argument("--selection", default="hedge")
    add_choices(arguments, "--speculation", POLICIES)
    arguments.add_argument("--schedule", default="default")
    options = arguments.parse_args()
    if (options.model is None) != (options.data is None):
        arguments.error("--model: a target besides the zoo's is asked the prompts of --data DIR")
    torch.set_num_threads(2)
    zoo = options.model is None
    target = target_config(options.model, options.params if zoo else None, options.dtype)
    drafters = [drafter_config(name) for name in options.drafters]
    fleet = asyncio.run(start_fleet(target, drafters, cache_dir() / "profiles"))
    ask = mixed_requests if zoo else partial(real_requests, options.data, target.path())
    records = asyncio.run(compare(fleet, drafters, options, ask))
    publish(records, options.json)


def real_requests(data: Path, checkpoint: Path, count: int, seed: int = 1) -> Sequence[Request]:
    return real_prompts(data, checkpoint, seed=seed)[:count]


def target_config(model: str | None, params: int | None, dtype: str) -> TargetConfig:
    """A target in this process, by default the built-in one; `params`: to inflate that to."""
    fields = {"inflate_to": params, "dtype": dtype, "kv_tokens": KV_TOKENS, "placement": "inline"}
    if model is not None:
        fields |= {"model": model, "quantize": "none"}  # in `dtype`
    return TargetConfig.model_validate(fields)


def drafter_config(name: str) -> DrafterConfig:
    """A built-in model in this process, a copy of the target, or a lookup."""
    if name in COPIES:
        fields = {"name": name, "kind": "quantized", "quantize": name, "placement": "inline"}
        return DrafterConfig.model_validate(fields)
    if name in DRAFTERS:
        return DrafterConfig(name=name, model=f"zoo/{name}", placement="inline")
    if name in LOOKUPS:
        return DrafterConfig(name=name, kind=name)
    known = ", ".join((*DRAFTERS, *LOOKUPS, *COPIES))
    raise SystemExit(f"--drafters: no {name!r}; there are {known}")


def reset_lookups(lanes: Sequence[Lane], drafters: Sequence[DrafterConfig]) -> None:
    """Replaces lookup drafters by empty ones: modes serve the same requests, and must not find the
    outputs of another mode."""
    configs = {drafter.name: drafter for drafter in drafters}
    for lane in lanes:
        if isinstance(lane.host, DirectDrafter):
            lane.host.drafter = make_lookup(configs[lane.view.drafter])


async def compare(
    fleet: Fleet,
    drafters: Sequence[DrafterConfig],
    options: argparse.Namespace,
    ask: Callable[..., Sequence[Request]],
) -> list[Record]:
    """`ask`: requests by their count and `seed`."""
    events: list[Event] = []
    names = itertools.count()
    largest = max(options.clients)
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    schedule = make_schedule(options.schedule)

    def policies(choice: SpeculationChoice) -> Policies:
        speculation = make_speculation(choice.name, choice.options, estimates.calibrations)
        return Policies(schedule, make_selection(options.selection), speculation)

    drafting = {choice.text: policies(choice) for choice in options.speculation}
    first, *others = drafting
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        drafting[first],
        estimates,
        Limits(max_batch=largest, max_waiting=largest, kv_tokens=KV_TOKENS),
        observe=events.append,
    )

    async def segment(requests: Sequence[Request], clients: int, mode: str) -> Segment:
        events.clear()
        reset_lookups(fleet.lanes, drafters)
        if mode in drafting:
            coordinator.use(drafting[mode], MicroBatchParams())

        async def send(_number: int, request: Request) -> RequestTiming:
            return await serve(coordinator, str(next(names)), request, mode in drafting)

        served, seconds = await closed_loop(requests, clients, send)
        return Segment(served, seconds, list(events))

    for mode in drafting:  # warms up estimates and compiled functions
        await segment(ask(options.requests, seed=2), largest, mode)
    modes = [PLAIN, *drafting]
    records = []
    for clients in options.clients:
        # With fewer, the longest request would determine the duration of a segment.
        count = max(options.requests, 4 * clients)
        requests = ask(count * options.segments)
        served: dict[str, list[Segment]] = {mode: [] for mode in modes}
        for number in range(options.segments):
            part = requests[number * count : (number + 1) * count]
            begin = number % len(modes)
            for mode in modes[begin:] + modes[:begin]:
                served[mode].append(await segment(part, clients, mode))
        records += report(f"local/{clients}", served[PLAIN], served[first])
        for mode in others:
            ours, theirs = (mean(s.goodput for s in served[one]) for one in (first, mode))
            records.append(Record.over(theirs, f"local/{clients}/over/{mode}", ours, "tokens/s"))
            records += report(f"local/{clients}/{mode}", served[PLAIN], served[mode])
    await coordinator.close()
    return records


async def serve(
    coordinator: Coordinator, name: str, request: Request, speculate: bool
) -> RequestTiming:
    """Reads the whole stream of one request."""
    clock = asyncio.get_running_loop().time
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    started = clock()
    first_s, tokens = 0.0, 0
    async for commit in coordinator.submit(name, request.prompt, params, speculate=speculate):
        first_s = first_s or clock() - started
        tokens += len(commit.token_ids)
    return RequestTiming(request.domain, tokens, first_s, clock() - started)


def report(name: str, plain: Sequence[Segment], drafted: Sequence[Segment]) -> list[Record]:
    goodput, reference = (mean(s.goodput for s in segments) for segments in (drafted, plain))
    ttft_s, plain_ttft_s = (
        median(request.ttft_s for segment in segments for request in segment.served)
        for segments in (drafted, plain)
    )
    records = [
        Record.over(reference, f"{name}/goodput", goodput, "tokens/s"),
        Record.over(plain_ttft_s, f"{name}/ttft_p50", ttft_s, "s"),
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
    """Mean speeds of requests; the ratio is the median of each request's own ratio."""
    ours = [request for segment in drafted for request in segment.served]
    theirs = [request for segment in plain for request in segment.served]
    records = []
    for domain in sorted({request.domain for request in ours}):
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.domain == domain]
        speeds = (
            [1 / a.seconds_per_token for a, _ in pairs],
            [1 / b.seconds_per_token for _, b in pairs],
        )
        ratio = median(mine / plains for mine, plains in zip(*speeds, strict=True))
        records.append(
            Record(f"{name}/{domain}", mean(speeds[0]), "tokens/s", mean(speeds[1]), ratio)
        )
    return records


if __name__ == "__main__":
    main()

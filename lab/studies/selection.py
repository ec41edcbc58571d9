"""Compares how each request gets its drafter: a learning selection, one head for all, or none.

`python -m lab.studies.selection [--data DIR] [--head DIR ...] [--selections hedge lbss]
[--clients 1 4] [--rounds 3] [--json FILE]`.

The default target on real prompts, in one process; lookups draft in all arms beside the head that
an arm selects. Arms serve the same greedy requests in turns: `lookups` (no head), each head for all
requests, and each selection, which goes on learning from turn to turn. Names:
real/selection/cCLIENTS/ARM/goodput and .../CATEGORY/speed (tokens by the seconds of that category's
requests; `reference`: `lookups`), .../tokens_per_round, .../in_hindsight/speed: each request by the
arm without learning that was fastest for it (`reference`: the best of these arms for all), which
is what a selection could gain at most, and more than that: it takes the best of noisy times.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import mean

import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, load
from actors.hosts.specs import DrafterSpec, TargetSpec
from benchmarks.real.prompts import CATEGORIES, real_prompts
from benchmarks.report import Record, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.local import (
    KV_TOKENS,
    RequestTiming,
    Segment,
    drafter_spec,
    reset_lookups,
    serve,
)
from benchmarks.serving.requests import Request
from cluster.built_in_models import HEADS, SMOLLM2, model_path
from cluster.cache import cache_dir
from cluster.config.drafter_kinds import LOOKUPS
from cluster.sources import checkpoint_folder
from policies.catalogue import SELECTIONS, make_schedule, make_selection, make_speculation
from policies.microbatch import MicroBatchParams
from policies.protocols import Selection

NO_HEAD = "lookups"
HINDSIGHT = "in_hindsight"


def main() -> None:
    options = _options()
    torch.set_num_threads(2)
    checkpoint = checkpoint_folder(options.model)
    target = TargetSpec(checkpoint, torch.float32, KV_TOKENS)
    heads = [
        DrafterSpec(folder.name, kind="eagle3", checkpoint=folder, target=checkpoint)
        for folder in options.head
    ]
    drafters = [*map(drafter_spec, LOOKUPS), *heads]
    fleet = load(target, drafters, cache_dir() / "profiles")
    prompts = real_prompts(options.data, checkpoint, options.categories)
    records = asyncio.run(compare(fleet, drafters, prompts, options))
    publish(records, options.json)


def _options() -> argparse.Namespace:
    own = parser(__doc__)
    own.add_argument("--model", default=SMOLLM2, help="as target.model in a config")
    own.add_argument("--data", type=Path, default=Path("../shared/data"))
    own.add_argument("--head", type=Path, nargs="+", default=[model_path(name) for name in HEADS])
    own.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    own.add_argument("--selections", nargs="+", choices=SELECTIONS, default=["hedge", "lbss"])
    own.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    own.add_argument(
        "--requests", type=int, default=16, help="in a turn, and at least 4 for each client"
    )
    own.add_argument("--rounds", type=int, default=3, help="turns of each arm")
    return own.parse_args()


async def compare(
    fleet: Fleet,
    drafters: Sequence[DrafterSpec],
    prompts: Sequence[Request],
    options: argparse.Namespace,
) -> list[Record]:
    events: list[Event] = []
    names = count()
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    heads = [spec.name for spec in drafters if not spec.is_lookup]
    fixed = [NO_HEAD, *heads]
    arms = {
        name: _policies(selection, estimates) for name, selection in _arms(heads, options).items()
    }
    most = max(options.clients)
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        arms[NO_HEAD],
        estimates,
        Limits(max_batch=most, max_waiting=most, kv_tokens=KV_TOKENS),
        observe=events.append,
    )

    async def turn(requests: Sequence[Request], clients: int, arm: str) -> Segment:
        events.clear()
        reset_lookups(fleet.lanes, drafters)
        coordinator.use(arms[arm], MicroBatchParams())

        async def send(_number: int, request: Request) -> RequestTiming:
            return await serve(coordinator, str(next(names)), request, True)

        served, seconds = await closed_loop(requests, clients, send)
        return Segment(served, seconds, list(events))

    for arm in arms:  # warms up estimates and compiled functions
        await turn(prompts[-options.requests :], most, arm)
    records = []
    for clients in options.clients:
        size = max(options.requests, 4 * clients)
        served: dict[str, list[Segment]] = {arm: [] for arm in arms}
        for number in range(options.rounds):
            part = prompts[number * size : (number + 1) * size]
            begin = number % len(arms)
            for arm in (*arms, *arms)[begin : begin + len(arms)]:
                served[arm].append(await turn(part, clients, arm))
                print(f"c{clients} {number} {arm} {served[arm][-1].goodput:.1f}", flush=True)
        records += report(f"real/selection/c{clients}", served, fixed)
    await coordinator.close()
    return records


def _arms(heads: Sequence[str], options: argparse.Namespace) -> dict[str, Selection]:
    fixed = {name: make_selection("fixed", {"drafter": name}) for name in (NO_HEAD, *heads)}
    return fixed | {name: make_selection(name) for name in options.selections}


def _policies(selection: Selection, estimates: Estimates) -> Policies:
    speculation = make_speculation("planner", {}, estimates.calibrations)
    return Policies(make_schedule("default"), selection, speculation)


def report(
    name: str, served: Mapping[str, Sequence[Segment]], fixed: Sequence[str]
) -> list[Record]:
    """`fixed`: the arms that do not learn."""
    reference = served[NO_HEAD]
    requests = {
        arm: [one for turn in turns for one in turn.served] for arm, turns in served.items()
    }
    records = []
    for arm, turns in served.items():
        goodput, plain = (mean(turn.goodput for turn in one) for one in (turns, reference))
        records.append(Record.over(plain, f"{name}/{arm}/goodput", goodput, "tokens/s"))
        for category in sorted({one.domain for one in requests[arm]}):
            ours, theirs = (
                _speed([one for one in requests[each] if one.domain == category])
                for each in (arm, NO_HEAD)
            )
            records.append(Record.over(theirs, f"{name}/{arm}/{category}/speed", ours, "tokens/s"))
        rounds = [
            outcome.committed
            for turn in turns
            for event in turn.events
            if isinstance(event, Verified)
            for outcome in event.outcomes
        ]
        records.append(Record(f"{name}/{arm}/tokens_per_round", mean(rounds), "tokens"))
    best = max(_speed(requests[arm]) for arm in fixed)
    chosen = [
        min(timings, key=lambda one: one.seconds_per_token)
        for timings in zip(*(requests[arm] for arm in fixed), strict=True)
    ]
    records.append(Record.over(best, f"{name}/{HINDSIGHT}/speed", _speed(chosen), "tokens/s"))
    return records


def _speed(requests: Sequence[RequestTiming]) -> float:
    return sum(one.tokens for one in requests) / sum(one.seconds for one in requests)


if __name__ == "__main__":
    main()

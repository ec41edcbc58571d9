"""Measures what micro-batches gain where drafter and verifier have a core each.

`python -m lab.studies.pipeline [--clients N] [--drafter NAME] [--speculation POLICY ...]`.

Verifier and drafter are actors with one thread, pinned to a core each (`taskset`'s call); the
coordinator shares the drafter's. Closed-loop clients send the same held-out requests by turns: with
one micro-batch, with two, and with as many as are predicted to gain. Names: pipeline/POLICY/PARTS;
`reference` is one micro-batch, ratios are medians of the turns' own. `overlap` is the share of the
verifier's time in which the drafter worked, too.
"""

import argparse
import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import truediv
from statistics import mean, median

import ray
import torch
from ray._private import state  # the public API needs a dashboard, which takes seconds to start

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Drafted, Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Group
from actors.hosts.specs import DrafterSpec, TargetSpec
from benchmarks.report import Record, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.local import KV_TOKENS, serve
from benchmarks.serving.requests import Request, mixed_requests
from benchmarks.speculation_choice import SpeculationChoice, add_choices
from cluster.built_in_models import DRAFTERS, TARGET, inflated_target, model_path
from cluster.cache import cache_dir
from policies.catalogue import make_schedule, make_selection, make_speculation
from policies.microbatch import MicroBatchParams

_REPLICA = "pipeline"
_PIPELINES = {
    "1": MicroBatchParams(parts=1),
    "2": MicroBatchParams(parts=2),
    "searched": MicroBatchParams(),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """The requests of one turn, served with one policy and pipeline."""

    tokens_per_s: float
    overlap: float
    batch: float
    """Requests of a forward, on average."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clients", type=int, default=8)
    arguments.add_argument("--requests", type=int, default=24, help="in each turn")
    arguments.add_argument("--turns", type=int, default=4)
    arguments.add_argument("--params", type=int, help="of the target; default: not inflated")
    arguments.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
    arguments.add_argument("--drafter", choices=DRAFTERS, default="small")
    add_choices(arguments, "--speculation", ("fixed:length=4", "planner"))
    options = arguments.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        publish(asyncio.run(compare(options)), options.json)
    finally:
        ray.shutdown()


async def compare(options: argparse.Namespace) -> list[Record]:
    dtype = getattr(torch, options.dtype)
    checkpoint = inflated_target(options.params) if options.params else model_path(TARGET)
    fleet = await start_fleet(
        TargetSpec(checkpoint, dtype, KV_TOKENS, placement="actor"),
        [DrafterSpec("drafter", checkpoint=model_path(options.drafter), placement="actor")],
        cache_dir() / "profiles",
        Group(_REPLICA),
        measure_s=5.0,
    )
    pin_apart()
    try:
        return await _compare(fleet, options)
    finally:
        await fleet.close()


def pin_apart() -> None:
    """The verifier to the first core, everything else of ours to the second."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    prefix = f"spindle:{_REPLICA}:"
    for actor in state.actors().values():
        if actor["Name"].startswith(prefix) and actor["State"] == "ALIVE":
            core = first if ":verifier" in actor["Name"] else second
            _pin(actor["Pid"], core)
    _pin(os.getpid(), second)


def _pin(process: int, core: int) -> None:
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {core})


async def _compare(fleet: Fleet, options: argparse.Namespace) -> list[Record]:
    events: list[Event] = []
    names = itertools.count()
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])

    def policies(choice: SpeculationChoice) -> Policies:
        speculation = make_speculation(choice.name, choice.options, estimates.calibrations)
        return Policies(make_schedule("default"), make_selection("fixed"), speculation)

    chosen = {choice.text: policies(choice) for choice in options.speculation}
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        next(iter(chosen.values())),
        estimates,
        Limits(
            max_batch=options.clients,
            max_waiting=options.clients,
            kv_tokens=KV_TOKENS,
            slow_drafter_s=10.0,
            stalled_host_s=60.0,
        ),
        observe=events.append,
    )

    async def turn(requests: Sequence[Request], policy: str, pipeline: str) -> Turn:
        events.clear()
        coordinator.use(chosen[policy], _PIPELINES[pipeline])

        async def send(_number: int, request: Request) -> int:
            return (await serve(coordinator, str(next(names)), request, True)).tokens

        tokens, seconds = await closed_loop(requests, options.clients, send)
        return Turn(sum(tokens) / seconds, *_stages(events))

    requests = mixed_requests(options.requests * options.turns)
    turns: dict[tuple[str, str], list[Turn]] = {}
    modes = list(itertools.product(chosen, _PIPELINES))
    for policy, pipeline in modes:
        await turn(requests[: options.requests], policy, pipeline)
    for number in range(options.turns):
        part = requests[number * options.requests : (number + 1) * options.requests]
        begin = number % len(modes)
        for mode in modes[begin:] + modes[:begin]:
            turns.setdefault(mode, []).append(await turn(part, *mode))
    await coordinator.close()
    records = [_costs(fleet, options.clients)]
    for (policy, pipeline), own in turns.items():
        whole = [one.tokens_per_s for one in turns[policy, "1"]]
        speeds = [one.tokens_per_s for one in own]
        name = f"pipeline/{policy}/{pipeline}"
        ratio = median(map(truediv, speeds, whole))
        records += [
            Record(name, mean(speeds), "tokens/s", mean(whole), ratio),
            Record(f"{name}/overlap", mean(one.overlap for one in own), "share"),
            Record(f"{name}/batch", mean(one.batch for one in own), "requests"),
        ]
    return records


def _costs(fleet: Fleet, clients: int) -> Record:
    """How long four draft steps of all clients take over their verification, as profiled."""
    draft_s = 4 * fleet.costs.draft["drafter"].predict(200 * clients, clients)
    verify_s = fleet.costs.verify.predict(200 * clients, 5 * clients)
    return Record("pipeline/drafting", 1000 * draft_s, "ms", 1000 * verify_s, draft_s / verify_s)


def _stages(events: Sequence[Event]) -> tuple[float, float]:
    """Turn.overlap and Turn.batch."""
    drafting = [(e.at_s - e.seconds, e.at_s) for e in events if isinstance(e, Drafted)]
    verified = [e for e in events if isinstance(e, Verified)]
    busy_s = both_s = 0.0
    for one in verified:
        begin, end = one.at_s - one.seconds, one.at_s
        busy_s += end - begin
        both_s += sum(max(0.0, min(end, b) - max(begin, a)) for a, b in drafting)
    return both_s / busy_s, mean(len(one.outcomes) for one in verified)


if __name__ == "__main__":
    main()

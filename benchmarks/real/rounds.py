"""What a choice of drafters in every round gains on real text.

`python -m benchmarks.real.rounds --data DIR --head DIR [--traces FILE] [--clients 1 4] [--chains]`.

The target answers prompts greedily while the head drafts a chain at every token (with `--traces`
once: the file is read if it is there). Then the coordinator with its default policies serves the
recorded answers in virtual time, with real lookups, at the costs of `--forward-ms`, `--step-ms` and
`--lookup-ms`: fixed and for each row, step or request. Names: rounds/CLIENTS/ARM/... of the arms
`plain`, `lookups`, `head` and `both`, tokens_per_forward and speed (`reference`: plain), and
rounds/CLIENTS/both/over_best (`reference`: the faster of the two alone);
rounds/hindsight/tokens_per_forward: the better chain in every round (`reference`: lookups), and
rounds/CLIENTS/share_of_hindsight, what `both` reaches of that gain.
"""

import asyncio
import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.hosts.direct import DirectDrafter
from benchmarks.real.contenders import HEAD
from benchmarks.real.traces import Trace, in_hindsight, record
from benchmarks.report import Record, parser, publish
from benchmarks.serving.closed_loop import closed_loop
from cluster.plan.simulator import clock
from cluster.plan.simulator.device import Device, SimulatedHost
from cluster.plan.simulator.outputs import Target, Tokens
from cluster.plan.simulator.randomness import BLOCK
from cluster.plan.simulator.verifier import KvMemory, SimulatedVerifier
from cluster.sources import checkpoint_folder
from engine.drafters.lookup import SuffixDrafter
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams
from engine.soft_state import HeldRequest
from policies.catalogue import make_schedule, make_selection, make_speculation
from policies.cost import ForwardCost
from policies.protocols import StepRule
from policies.request import LaneView
from policies.tree import DraftTree

LOOKUP = "suffix"
ARMS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "lookups": (LOOKUP,),
    "head": (HEAD,),
    "both": (LOOKUP, HEAD),
}
_BATCH = 32
_ANY = 3
"""A token after an answer's end."""


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds."""

    forward: ForwardCost
    step: ForwardCost
    lookup: tuple[float, float]
    """The time of a round's calls, and of each of its requests."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--head", type=Path, required=True)
    arguments.add_argument("--model", default="SmolLM2-135M-Instruct")
    arguments.add_argument("--traces", type=Path, help="a file of recorded answers")
    arguments.add_argument("--requests", type=int, default=96)
    arguments.add_argument("--max-tokens", type=int, default=96)
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--chains", action="store_true", help="the verifier takes no trees")
    costs = {
        "--forward-ms": (40, 1.05),
        "--step-ms": (0.6, 0.8),
        "--lookup-ms": (0.65, 0.055),
    }
    for cost, usual in costs.items():
        arguments.add_argument(cost, type=float, nargs=2, default=usual)
    options = arguments.parse_args()
    traces = _traces(options)
    forward, step, lookup = (
        [ms / 1000 for ms in times]
        for times in (options.forward_ms, options.step_ms, options.lookup_ms)
    )
    paces = Paces(
        ForwardCost(2e-6, forward[1], forward[0]),
        ForwardCost(0.0, step[1], step[0]),
        (lookup[0], lookup[1]),
    )
    publish(compare(traces, paces, options.clients, trees=not options.chains), options.json)


def compare(
    traces: Sequence[Trace], paces: Paces, all_clients: Sequence[int], *, trees: bool = True
) -> list[Record]:
    lookups, best = in_hindsight(traces)
    records = [Record.over(lookups, "rounds/hindsight/tokens_per_forward", best, "tokens")]
    for clients in all_clients:
        name = f"rounds/{clients}"
        runs = {arm: serve(traces, lanes, paces, clients, trees) for arm, lanes in ARMS.items()}
        for arm, (tokens, speed) in runs.items():
            records += [
                Record(f"{name}/{arm}/tokens_per_forward", tokens, "tokens"),
                Record.over(runs["plain"][1], f"{name}/{arm}/speed", speed, "tokens/s"),
            ]
        alone = max(runs["lookups"][1], runs["head"][1])
        records.append(Record.over(alone, f"{name}/both/over_best", runs["both"][1], "tokens/s"))
        share = (runs["both"][0] - runs["lookups"][0]) / (best - lookups)
        records.append(Record(f"{name}/share_of_hindsight", share, "share"))
    return records


def _traces(options: Namespace) -> list[Trace]:
    file: Path | None = options.traces
    if file is not None and file.is_file():
        return [Trace(**fields) for fields in json.loads(file.read_text())]
    torch.set_num_threads(2)
    traces = record(checkpoint_folder(options.model), options)
    if file is not None:
        file.write_text(json.dumps([asdict(trace) for trace in traces]))
    return traces


def serve(
    traces: Sequence[Trace], lanes: Sequence[str], paces: Paces, clients: int, trees: bool
) -> tuple[float, float]:
    """Tokens per forward of a request, its first one left out; tokens per second of all."""
    return clock.run(_serve(traces, lanes, paces, clients, trees))


async def _serve(
    traces: Sequence[Trace], lanes: Sequence[str], paces: Paces, clients: int, trees: bool
) -> tuple[float, float]:
    events: list[Event] = []
    drafters = [_lane(lane, traces, paces) for lane in lanes]
    draft = {lane: paces.step for lane in lanes if lane == HEAD}
    budgets = dict.fromkeys(draft, _BATCH)
    costs = Costs(paces.forward, draft, _BATCH, budgets, most_tokens=512, trees=trees)
    estimates = Estimates(costs, [lane.view for lane in drafters])
    speculation = make_speculation("planner", calibrations=estimates.calibrations)
    coordinator = Coordinator(
        _RecordedVerifier(traces, paces.forward, trees),
        drafters,
        Policies(make_schedule("default"), make_selection("hedge"), speculation),
        estimates,
        Limits(max_batch=clients, max_waiting=clients, kv_tokens=1 << 20),
        observe=events.append,
    )

    async def send(number: int, trace: Trace) -> int:
        params = SamplingParams(temperature=0, max_tokens=len(trace.output))
        received: list[int] = []
        async for commit in coordinator.submit(str(number), trace.prompt, params):
            received += commit.token_ids
        assert received == trace.output, number
        return len(received)

    counts, seconds = await closed_loop(traces, clients, send)
    await coordinator.close()
    rounds = [
        outcome.committed
        for event in events
        if isinstance(event, Verified) and not event.prefill_tokens
        for outcome in event.outcomes
    ]
    return mean(rounds), sum(counts) / seconds


def _lane(name: str, traces: Sequence[Trace], paces: Paces) -> Lane:
    if name == HEAD:
        return Lane(
            LaneView(HEAD, HEAD, _BATCH), _RecordedHead(traces, paces.step), own_processors=False
        )
    return Lane(LaneView(LOOKUP, LOOKUP, 4096), _Lookup(paces.lookup), always_drafts=True)


class _Lookup(DirectDrafter):
    """Takes virtual time."""

    def __init__(self, seconds: tuple[float, float]) -> None:
        super().__init__(SuffixDrafter())
        self._seconds = seconds

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        await asyncio.sleep(self._seconds[0] + self._seconds[1] * len(orders))
        return await super().draft(orders, rule)


class _RecordedTarget(Target):
    def __init__(self, traces: Sequence[Trace]) -> None:
        super().__init__({}, vocab_size=1 << 20)
        self._traces = traces

    def _block(self, request: str, seed: int, block: int) -> Tokens:
        tokens = self._traces[int(request)].output[block * BLOCK :][:BLOCK]
        return np.array([*tokens, *[_ANY] * (BLOCK - len(tokens))], np.int32)


class _RecordedVerifier(SimulatedVerifier):
    def __init__(self, traces: Sequence[Trace], cost: ForwardCost, trees: bool) -> None:
        longest = max(len(one.prompt) + len(one.output) for one in traces)
        target, memory = _RecordedTarget(traces), KvMemory(1 << 20)
        super().__init__(cost, target, max_context=longest, memory=memory, trees=trees)

    @property
    def limits(self) -> TargetLimits:
        return replace(super().limits, stop_token_ids=())


class _RecordedHead(SimulatedHost):
    def __init__(self, traces: Sequence[Trace], step: ForwardCost) -> None:
        super().__init__(Device(HEAD), lambda *_: None)
        self._traces = traces
        self._step = step

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing]:
        async with self.device.turn():
            states = self._state.accept([order.prefix for order in orders])
            chains = {
                order.prefix.request: self._chain(order, held)
                for order, held in zip(orders, states, strict=True)
                if isinstance(held, HeldRequest)
            }
            levels, seconds = self._levels(chains, rule)
            await self._work(seconds)
            return [
                held
                if isinstance(held, Missing)
                else self._answer(order, held, chains[order.prefix.request], levels)
                for order, held in zip(orders, states, strict=True)
            ]

    def _chain(self, order: DraftOrder, held: HeldRequest) -> tuple[list[int], list[float]]:
        trace = self._traces[int(order.prefix.request)]
        done = len(held.committed) - len(trace.prompt)
        if order.depth == 0 or not 0 < done < len(trace.chains):
            return [], []
        tokens, confidence = trace.chains[done]
        return tokens[: order.depth], confidence[: order.depth]

    def _levels(
        self, chains: Mapping[str, tuple[list[int], list[float]]], rule: StepRule | None
    ) -> tuple[dict[str, int], float]:
        """How deep each request drafts, and the time of the steps."""
        levels, seconds = dict.fromkeys(chains, 0), self._step.predict(0, len(chains))
        drafting, level = [name for name, (tokens, _) in chains.items() if tokens], 0
        while drafting:
            paths = [np.float32(prod(chains[name][1][:level])) for name in drafting]
            frontier = [np.array([path][: min(level, 1)], np.float32) for path in paths]
            wanted = [True] * len(drafting) if rule is None else rule(level, drafting, frontier)
            going = [name for name, more in zip(drafting, wanted, strict=True) if more]
            level += 1
            levels.update(dict.fromkeys(going, level))
            seconds += self._step.predict(0, len(going)) if going and level > 1 else 0.0
            drafting = [name for name in going if len(chains[name][0]) > level]
        return levels, seconds

    def _answer(
        self,
        order: DraftOrder,
        held: HeldRequest,
        chain: tuple[list[int], list[float]],
        levels: Mapping[str, int],
    ) -> Draft:
        prefix, trace = order.prefix, self._traces[int(order.prefix.request)]
        size, matched = levels[prefix.request], list[bool]()
        if order.score:
            first = max(held.unchanged - len(trace.prompt), 1)
            read = range(first, min(len(held.committed) - len(trace.prompt), len(trace.output)))
            matched = [trace.chains[n][0][:1] == [trace.output[n]] for n in read]
        tree = DraftTree.chain(chain[0][:size], chain[1][:size])
        return Draft(prefix.request, prefix.attempt, prefix.round, tree, tuple(matched))


if __name__ == "__main__":
    main()

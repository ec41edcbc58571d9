"""Measures the CPU time of each policy per round.

`python -m lab.micro.policy_cost [--json FILE]`.

Rounds of 8, 64 and 256 running requests, each with a draft tree of 16 nodes; the policies' inputs
are made beforehand. The defaults together should stay below 1 ms at 64 requests and grow linearly.
AdaServe reports 0.4% of its serving time.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from benchmarks.report import Record, parser, publish
from policies.catalogue import (
    SCHEDULES,
    SELECTIONS,
    SPECULATIONS,
    fair,
    make_schedule,
    make_selection,
    make_speculation,
)
from policies.cost import LinearCost, RooflineCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten
from policies.microbatch import LaneLoad, split
from policies.protocols import Candidates, LaneBatch, RoundContext, Schedule, Selection, Speculation
from policies.request import LaneView, RequestView, RoundOutcome, Slo
from policies.tree import DraftTree

REQUESTS = (8, 64, 256)
ROUNDS = 40
NODES = 16
TARGET_US = 1000.0
DEFAULTS = ("speculation/planner", "selection/hedge", "schedule/fair default", "calibration")
VERIFY = RooflineCost(1e-7, 1e-4, 0.02, 256, 3e-4)
DRAFT = LinearCost(0, 1e-6, 1e-4)
LANES = [LaneView(name, name, 256, size=1e6, catch_up_s=1e-5) for name in ("a", "b", "c", "d")]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    records: list[Record] = []
    totals: dict[int, float] = {}
    for requests in REQUESTS:
        views = make_views(requests)
        trees = make_trees(requests)
        spent: dict[str, float] = {}
        for name in SPECULATIONS:
            spent[f"speculation/{name}"] = speculation_us(make_speculation(name), views, trees)
        for name in SELECTIONS:
            spent[f"selection/{name}"] = selection_us(make_selection(name), views)
        for name in SCHEDULES:
            spent[f"schedule/{name}"] = schedule_us(make_schedule(name), views)
        spent["schedule/fair default"] = schedule_us(fair(make_schedule("default")), views)
        spent["calibration"] = calibration_us(trees)
        spent["microbatch (each plan)"] = microbatch_us(requests)
        totals[requests] = sum(spent[name] for name in DEFAULTS)
        spent["defaults together"] = totals[requests]
        records += [
            Record(f"policy_cost/{requests}/{name}", value, "us") for name, value in spent.items()
        ]
    records.append(Record.over(TARGET_US, "policy_cost/defaults at 64", totals[64], "us"))
    growth = totals[256] / totals[64]
    records.append(Record.over(4.0, "policy_cost/growth from 64 to 256", growth, "x"))
    publish(records, arguments.json)


def make_views(requests: int) -> list[RequestView]:
    """Running requests, every other one with an SLO."""
    return [
        RequestView(
            str(number),
            arrival_s=0.001 * number,
            prompt_len=100,
            max_tokens=1 << 20,
            slo=Slo(tpot_s=0.05) if number % 2 else Slo(),
            generated=20,
            first_token_s=0.1,
            prefilled=119,
            predicted_len=100.0 + number,
        )
        for number in range(requests)
    ]


def make_trees(requests: int) -> list[DraftTree]:
    rng = np.random.default_rng(0)
    parents = [-1, -1, 0, 0, 1, 2, 2, 3, 5, 5, 6, 8, 8, 9, 11, 11][:NODES]
    return [
        DraftTree.build(list(range(NODES)), parents, rng.uniform(0.1, 0.5, NODES).tolist())
        for _ in range(requests)
    ]


def speculation_us(
    policy: Speculation, views: Sequence[RequestView], trees: Sequence[DraftTree]
) -> float:
    context = round_context()
    lanes = [(LANES[number % len(LANES)].name,) for number in range(len(views))]
    candidates = Candidates(views, flatten(trees), [0.001] * len(views), lanes)
    names = [view.name for view in views]
    batches = [LaneBatch(lane.name, views[index :: len(LANES)]) for index, lane in enumerate(LANES)]

    def play_round(now: float) -> None:
        policy.plan(batches, context, now)
        context.acceptance.credit(names, candidates.trees, lanes, None)
        policy.select(candidates, context, now)

    return microseconds(play_round)


def selection_us(policy: Selection, views: Sequence[RequestView]) -> float:
    context = round_context()
    by_lane = {lane: outcomes(views, lane) for lane in (None, *(lane.name for lane in LANES))}

    def play_round(now: float) -> None:
        chosen = policy.assign(views, LANES, context, now)
        policy.observe([by_lane[chosen.get(view.name)][at] for at, view in enumerate(views)])
        for view in views:
            policy.likely_next(view.name)

    return microseconds(play_round)


def round_context() -> RoundContext:
    draft = {lane.name: DRAFT for lane in LANES}
    return RoundContext(VERIFY, draft, 512, {}, 512, AcceptanceEstimates(LANES))


def schedule_us(policy: Schedule, views: Sequence[RequestView]) -> float:
    """Half of the requests run, the other half waits."""
    slots = max(1, len(views) // 2)
    for view in views:
        policy.arrive(view, 0.0)
    running = [view.name for view in views[:slots]]

    by_request = {outcome.request: outcome for outcome in outcomes(views)}

    def play_round(now: float) -> None:
        nonlocal running
        running = policy.pick(views, running, slots, now)
        policy.observe([by_request[name] for name in running], now)

    return microseconds(play_round)


def calibration_us(trees: Sequence[DraftTree]) -> float:
    calibration, drafted = Calibration(), flatten(trees)
    committed = [(0, 2, 5)] * len(trees)

    def play_round(_now: float) -> None:
        calibration.observe(calibration.calibrate(drafted), committed)

    return microseconds(play_round)


def microbatch_us(requests: int) -> float:
    loads = [LaneLoad(requests // 4, 100 * requests // 4, 4, 2.5, DRAFT) for _ in range(4)]
    return microseconds(lambda _now: split(loads, VERIFY))


def outcomes(views: Sequence[RequestView], lane: str | None = "a") -> list[RoundOutcome]:
    return [RoundOutcome(view.name, lane, 4, 4, 2, 3, 0.025, 0.02, 0.001) for view in views]


def microseconds(play_round: Callable[[float], object]) -> float:
    """Median over rounds of the CPU time, in which other processes do not count."""
    spent = []
    for number in range(5 + ROUNDS):
        started = time.process_time()
        play_round(0.2 + 0.025 * number)
        spent.append(time.process_time() - started)
    return 1e6 * median(spent[5:])


if __name__ == "__main__":
    main()

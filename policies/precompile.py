"""Compiles the policies' numba loops, or loads them from disk, and imports what they import late,
before any request waits for it."""

from functools import cache

import numpy as np

from policies.catalogue import make_selection, make_speculation
from policies.cost import ForwardCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.estimates.calibration import Calibration
from policies.flat_trees import (
    best_chains,
    deepest_of,
    flatten,
    gather_trees,
    merge_each,
    prune_each,
)
from policies.protocols import Candidates, LaneBatch, RoundContext
from policies.request import LaneView, RequestView, RoundOutcome, Slo
from policies.selection.lane_capacity import match
from policies.tree import DraftTree
from policies.tree_counts import count_nodes


@cache
def warm_up() -> None:
    """Runs two rounds with the default policies; once per process."""
    verify, draft = ForwardCost(1e-6, 1e-4, 0.01), ForwardCost(0.0, 1e-6, 1e-5)
    lanes = [LaneView("costly", "costly", 4), LaneView("other", "other", 4)]
    acceptance = AcceptanceEstimates([*lanes, LaneView("lookup", "lookup", 4)], free=["lookup"])
    context = RoundContext(verify, {"costly": draft}, 64, {"costly": 64}, 64, acceptance)
    requests = [
        RequestView(
            str(number),
            arrival_s=0.0,
            prompt_len=8,
            max_tokens=64,
            slo=Slo(tpot_s=0.001 if number else None),
            generated=2,
            first_token_s=0.0,
        )
        for number in range(2)
    ]
    match(np.ones((2, 1)), np.ones(1, np.intp), np.zeros(2))
    calibration = Calibration()
    planner = make_speculation("planner", calibrations={"costly": calibration})
    hedge = make_selection("hedge")
    free, costly = DraftTree.chain([1, 2], [0.9, 0.9]), DraftTree.build([1, 3], [-1, 0], [0.9, 0.4])
    for now in (1.0, 2.0):
        hedge.assign(requests, lanes, context, now)
        batches = [LaneBatch("costly", requests), LaneBatch("lookup", requests)]
        [plan, _] = planner.plan(batches, context, now)
        if plan.rule is not None:
            names = [request.name for request in requests]
            for depth in range(3):
                level = costly.confidence[max(0, depth - 1) : depth]
                plan.rule(depth, names, [level] * len(names))
        drafted = calibration.calibrate(flatten([free, costly]))
        calibration.observe(drafted, [(1, 3, 4)] * 2)
        refs = [(drafted, number) for number in (0, 1, 1, 0)]
        trees, sources = merge_each([2, 2], gather_trees(refs))
        deepest_of(trees.starts, trees.depth)
        proposers = [("lookup", "costly")] * 2
        acceptance.credit([request.name for request in requests], trees, proposers, sources)
        candidates = Candidates(requests, trees, [0.001] * 2, proposers, sources)
        planner.select(candidates, context, now)
        prune_each(trees, best_chains(trees))
        drafters, accepted = np.zeros((2, 2), np.int64), np.zeros(1, np.int64)
        ends = np.array([1, -1])
        count_nodes(trees, drafters, sources, accepted, ends, np.zeros((1, 9, 3)))
        outcomes = [
            RoundOutcome(request.name, "costly", 3, 2, 1, 2, 0.02, 0.01, 0.001)
            for request in requests
        ]
        hedge.observe(outcomes)
        for outcome in outcomes:
            acceptance.observe_read(outcome.request, "other", [True, False], [False, False])
            hedge.likely_next(outcome.request)
        acceptance.observe_miss([requests[0].name], "lookup")

"""What a coordinator has learned while serving: costs, calibrations, and waits between rounds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from actors.coordinator.calibration_buffer import CalibrationBuffer
from actors.coordinator.events import Verified
from actors.coordinator.request_state import RequestState
from engine.protocol import DraftOrder
from policies.cost import CostModel
from policies.estimates.calibration import Calibration
from policies.estimates.online_cost import RefinedCost, RefinementParams
from policies.estimates.overheads import RoundOverheads
from policies.flat_trees import (
    FlatTrees,
    Ints,
    best_chains,
    deepest_of,
    gather_trees,
    merge_each,
    prune_each,
)
from policies.microbatch import LaneLoad
from policies.protocols import RoundContext
from policies.request import LaneView

_WAIT_MEMORY = 0.1
"""Of the running mean of waits: the last ten or so rounds count."""
_CALLS = RefinementParams(longest_call=100.0)
"""A small drafter's call may take many times its forwards, which were profiled back to back: it
changes threads or processes, asks the rule at each level, and finds the caches cold."""
_DEEPEST_SCORED = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """As profiled, before anything was served, and what the verifier takes at all."""

    verify: CostModel
    draft: Mapping[str, CostModel]
    """By lane; lanes without one draft for nothing."""
    verify_budget: int
    draft_budget: int
    most_tokens: int
    trees: bool = True
    """Whether the verifier takes trees, or chains only."""


class Batch(NamedTuple):
    """Of a forward."""

    requests: int
    context: int


@dataclass(frozen=True, slots=True)
class Score:
    """What a lane would have gained on tokens that others have committed."""

    rounds: int
    """That it would have taken."""
    tokens: float
    """Per round."""
    seconds: float


_NO_SOURCES = np.zeros(0, np.int64)


class _Taken(NamedTuple):
    """What the verifier takes of many trees."""

    trees: FlatTrees
    sources: Ints
    """Of their nodes, where they were merged."""
    sizes: list[int]
    depths: list[int]


class Estimates:
    def __init__(self, costs: Costs, lanes: Sequence[LaneView]) -> None:
        self._verify = RefinedCost(costs.verify)
        self._draft = {lane: RefinedCost(cost, _CALLS) for lane, cost in costs.draft.items()}
        self._verify_budget = costs.verify_budget
        self._draft_budget = costs.draft_budget
        self._most_tokens = costs.most_tokens
        self._trees = costs.trees
        by_drafter = {lane.drafter: Calibration() for lane in lanes}
        self.calibrations = {lane.name: by_drafter[lane.drafter] for lane in lanes}
        """By lane; lanes with the same drafter share theirs."""
        self.calibration_buffer = CalibrationBuffer(self.calibrations)
        self._queueing_s = 0.0
        """A running mean of waiting while the verifier worked for others."""
        self._handling = RoundOverheads()
        """What rounds take beyond that."""

    def context(self, prefill_tokens: int = 0) -> RoundContext:
        return RoundContext(
            verify=self._verify,
            draft=self._draft,
            verify_budget=self._verify_budget,
            draft_budget=self._draft_budget,
            most_tokens=self._most_tokens,
            prefill_tokens=prefill_tokens,
            trees=self._trees,
            waiting_s=self._queueing_s + self._handling.plain_s,
            handling_s=self._handling.drafting_extra_s,
            call_s={lane: self._call_s(lane) for lane in self._draft},
        )

    def unite(self, jobs: Collection[RequestState]) -> None:
        """Each one's proposals become one tree, with probabilities for confidences; where the
        verifier takes chains only, the best one of that tree."""
        told: dict[int, FlatTrees] = {}
        for job in jobs:
            for lane, trees, _ in job.proposals:
                if id(trees) not in told:
                    told[id(trees)] = self.calibrations[lane].calibrate(trees)
        alone = {number: self._taken(trees) for number, trees in told.items()}
        several: list[RequestState] = []
        for job in jobs:
            if len(job.proposals) == 1:
                _, trees, place = job.proposals[0]
                taken = alone[id(trees)]
                job.draft = taken.trees, place
                job.nodes, job.depth = taken.sizes[place], taken.depths[place]
            elif job.proposals:
                several.append(job)
        if several:
            parts = [(told[id(all_)], at) for job in several for _, all_, at in job.proposals]
            merged = merge_each([len(job.proposals) for job in several], gather_trees(parts))
            taken = self._taken(*merged)
            bounds = pairwise(taken.trees.starts.tolist())
            for place, (job, (begin, end)) in enumerate(zip(several, bounds, strict=True)):
                job.draft = taken.trees, place
                job.nodes, job.depth = taken.sizes[place], taken.depths[place]
                job.sources = taken.sources[begin:end]

    def _taken(self, trees: FlatTrees, sources: Ints = _NO_SOURCES) -> "_Taken":
        """What the verifier takes of them."""
        if not self._trees:
            kept = best_chains(trees)
            trees, sources = prune_each(trees, kept), sources[kept[: len(sources)]]
        depths = deepest_of(trees.starts, trees.depth)
        return _Taken(trees, sources, trees.sizes.tolist(), depths.tolist())

    def learn_draft_cost(
        self, lane: str, orders: Sequence[DraftOrder], trees: FlatTrees, seconds: float
    ) -> None:
        """A draft call as that many equal forwards as its deepest tree has levels."""
        if lane not in self._draft:
            return
        levels = int(trees.depth.max(initial=1))
        context = sum([order.prefix.base for order in orders])
        tokens = sum([len(order.prefix.delta) for order in orders]) + len(trees.tokens)
        self._draft[lane].observe(context, tokens / levels, seconds, levels)

    def learn_verify(self, verified: Verified) -> None:
        predicted_s = self._verify.predict(verified.context, verified.tokens)
        slower_s = verified.seconds - predicted_s
        if not verified.outcomes or verified.prefill_tokens:
            # Of a prompt only the last token is sampled: it would make draft tokens look cheap.
            return
        self._verify.observe(verified.context, verified.tokens, verified.seconds)
        # Who waits for the drafts of others waits as long as they.
        drafting_s = max([outcome.draft_s for outcome in verified.outcomes])
        waits = [one.seconds - one.verify_s - drafting_s for one in verified.outcomes]
        wait_s = max(0.0, sum(waits) / len(waits))
        idle_s = min(wait_s, max(0.0, verified.idle_s - drafting_s))
        self._queueing_s += _WAIT_MEMORY * (wait_s - idle_s - self._queueing_s)
        self._handling.learn(
            idle_s + slower_s,
            predicted_s,
            any([outcome.tried for outcome in verified.outcomes]),
            {outcome.lane for outcome in verified.outcomes if outcome.lane is not None},
        )

    def share_of_prompts(self, context: int, tokens: int, prefill_tokens: int) -> float:
        """Of a forward."""
        whole_s = self._verify.predict(context, tokens)
        if not prefill_tokens or whole_s <= 0.0:
            return 0.0
        return 1.0 - self._verify.predict(context, tokens - prefill_tokens) / whole_s

    def _call_s(self, lane: str) -> float:
        """What a call of the lane takes besides its steps, before the forward or of it."""
        draft = self._draft.get(lane)
        return (draft.call_s if draft else 0.0) + self._handling.call_extra_s(lane)

    def score(
        self,
        lane: LaneView,
        context: int,
        matched: Sequence[bool],
        covered: Sequence[bool],
        batch: Batch,
    ) -> Score:
        """The lane's best goodput over all depths, replayed on committed tokens. `covered`: those
        that free lanes had proposed in any case. `batch`: all who share its forward, itself
        among them, so that a score compares with the slots that were measured under this load."""
        draft = self._draft.get(lane.name)
        step_s = draft.predict(context, 1) if draft else 0.0
        call_s = self._handling.drafting_extra_s + self._call_s(lane.name)
        waiting_s = self._queueing_s + self._handling.plain_s
        rounds = _rounds(np.array(matched), np.array(covered), _DEEPEST_SCORED)
        best = Score(0, 0.0, 1.0)
        for depth, count in enumerate(rounds.tolist()):
            verify_s = self._verify.predict(batch.context, batch.requests + depth)
            seconds = depth * step_s + verify_s + waiting_s
            seconds += call_s if depth else 0.0
            tokens = len(matched) / count
            if tokens * best.seconds > best.tokens * seconds:
                best = Score(count, tokens, seconds)
        return best

    def load(self, lane: str | None, jobs: Sequence[RequestState]) -> LaneLoad:
        """What a round of these requests is like, as far as is known."""
        rounds = max(1, sum(job.statistics.rounds for job in jobs))
        drafted = sum(job.statistics.drafted for job in jobs)
        draft = None if lane is None else self._draft.get(lane)
        accepted = sum(job.statistics.accepted for job in jobs)
        return LaneLoad(
            requests=len(jobs),
            context=sum(job.view.context for job in jobs),
            depth=0 if lane is None else max(1, round(drafted / rounds)),
            gain=1 + accepted / rounds,
            draft=draft,
            call_s=0.0 if lane is None else max(0.0, self._call_s(lane)),
        )


@njit(cache=True)
def _rounds(
    matched: NDArray[np.bool_], covered: NDArray[np.bool_], deepest: int
) -> NDArray[np.int64]:
    """Rounds that drafting 0, 1, ... tokens at a time would have taken for these tokens; drafts
    of free lanes go on for as long as they are right, up to the same depth."""
    rounds = np.zeros(deepest + 1, np.int64)
    for depth in range(deepest + 1):
        position = 0
        while position < len(matched):
            by_lane = _run(matched, position, depth)
            by_free = _run(covered, position, deepest)
            position += max(by_lane, by_free) + 1
            rounds[depth] += 1
    return rounds


@njit(cache=True)
def _run(right: NDArray[np.bool_], begin: int, most: int) -> int:
    end = begin
    while end < min(len(right), begin + most) and right[end]:
        end += 1
    return end - begin

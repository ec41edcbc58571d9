"""What a coordinator learns while serving: costs, calibrations, and waits between rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from actors.coordinator.events import Verified
from actors.coordinator.request_state import RequestState
from actors.coordinator.round_draft import NO_TREE, MergedTree, Proposal
from engine.draft_profile import draft_call_s
from engine.protocol import DraftOrder, fast_new
from policies.cost import NO_SWITCH, CostModel, SwitchCost
from policies.estimates.acceptance import AcceptanceEstimates
from policies.estimates.calibration import Calibration
from policies.estimates.online_cost import RefinedCost
from policies.estimates.overheads import RoundOverheads
from policies.flat_trees import (
    FlatTrees,
    Ints,
    TreeRef,
    best_chains,
    deepest_of,
    gather_trees,
    merge_each,
    prune_each,
)
from policies.microbatch import LaneLoad
from policies.protocols import NO_FIRST_TOKENS, FirstTokens, RoundContext
from policies.request import LaneView

_TREES_PER_UPDATE = 64
"""The fewest trees from which a calibration learns at once: single ones cost several times as
much."""


class CalibrationBuffer:
    """Verified trees by lane, until there are enough to learn from."""

    def __init__(self, calibrations: Mapping[str, Calibration]) -> None:
        """`calibrations`: by lane."""
        self._calibrations = calibrations
        self._verified: dict[str, list[tuple[TreeRef, Sequence[int]]]] = {
            lane: [] for lane in calibrations
        }

    def learn(self, verified: Sequence[tuple[Proposal, Sequence[int]]]) -> None:
        """`verified`: proposals and the tokens committed after each, which say which of its nodes
        were right."""
        for (lane, trees, place), tokens in verified:
            self._verified[lane].append(((trees, place), tokens))
        for lane, pairs in self._verified.items():
            if len(pairs) >= _TREES_PER_UPDATE:
                refs, committed = zip(*pairs, strict=True)
                self._calibrations[lane].observe(gather_trees(refs), committed)
                self._verified[lane] = []


_WAIT_MEMORY = 0.1
"""Weight of a new round in the running mean of waits: some ten rounds count."""
_LONGEST_CALL = 100.0
"""In forwards of one token. A small drafter's call may take many times its forwards, which were
profiled back to back: it changes threads or processes, evaluates the step rule at each level, and
runs with cold caches."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The profiled costs of forwards, and what one verification accepts."""

    verify: CostModel
    draft: Mapping[str, CostModel]
    """The cost of one draft step, by lane; lanes that are missing here draft at no cost."""
    verify_budget: int
    draft_budgets: Mapping[str, int]
    """These two are AdaServe's B_1 and, by lane, B_2 (policies/protocols.py, RoundContext)."""
    most_tokens: int
    """The most tokens that one forward of any model takes."""
    trees: bool = True
    """Whether the verifier takes trees, or chains only."""
    switch: SwitchCost = NO_SWITCH
    """The cost of preempting a request and resuming it."""


_NO_SOURCES = np.zeros(0, np.int64)


class _Verifiable(NamedTuple):
    """Trees in the form that the verifier takes: as they are, or cut down to chains."""

    trees: FlatTrees
    sources: Ints
    """By node, MergedTree.sources; empty for trees that were not merged."""
    sizes: list[int]
    depths: list[int]


class Estimates:
    def __init__(self, costs: Costs, lanes: Sequence[LaneView]) -> None:
        self._verify = RefinedCost(costs.verify)
        self._draft = {lane: RefinedCost(cost, _LONGEST_CALL) for lane, cost in costs.draft.items()}
        self._verify_budget = costs.verify_budget
        self._draft_budgets = costs.draft_budgets
        self._most_tokens = costs.most_tokens
        self._trees = costs.trees
        by_drafter = {lane.drafter: Calibration() for lane in lanes}
        self.calibrations = {lane.name: by_drafter[lane.drafter] for lane in lanes}
        """By lane; lanes with the same drafter share theirs."""
        self.calibration_buffer = CalibrationBuffer(self.calibrations)
        free = [lane.name for lane in lanes if lane.name not in costs.draft]
        self.acceptance = AcceptanceEstimates(lanes, free)
        self._queueing_s = 0.0
        """Running mean of the time that a request waits for forwards of other micro-batches."""
        self._handling = RoundOverheads()
        """The rest of a round: what neither drafting, verification nor queueing accounts for."""

    def context(
        self,
        prefill_tokens: int = 0,
        active: int = 0,
        first_tokens: FirstTokens = NO_FIRST_TOKENS,
    ) -> RoundContext:
        return RoundContext(
            verify=self._verify,
            draft=self._draft,
            verify_budget=self._verify_budget,
            draft_budgets=self._draft_budgets,
            most_tokens=self._most_tokens,
            acceptance=self.acceptance,
            prefill_tokens=prefill_tokens,
            trees=self._trees,
            waiting_s=self._queueing_s + self._handling.plain_s,
            handling_s=self._handling.drafting_extra_s,
            active=active,
            call_s={lane: self._call_s(lane) for lane in self._draft},
            first_tokens=first_tokens,
        )

    def merge(self, proposals: Sequence[Sequence[Proposal]]) -> list[MergedTree]:
        """For each request, its proposals as one tree with calibrated confidences; for a verifier
        that takes chains only, the best chain of that tree."""
        calibrated: dict[int, FlatTrees] = {}
        for own in proposals:
            for lane, trees, _ in own:
                if id(trees) not in calibrated:
                    calibrated[id(trees)] = self.calibrations[lane].calibrate(trees)
        single = {call: self._verifiable(trees) for call, trees in calibrated.items()}
        merged = [NO_TREE] * len(proposals)
        several: list[int] = []
        for index, own in enumerate(proposals):
            if len(own) == 1:
                _, trees, place = own[0]
                kept = single[id(trees)]
                size, depth = kept.sizes[place], kept.depths[place]
                merged[index] = fast_new(MergedTree, ((kept.trees, place), size, depth, None))
            elif own:
                several.append(index)
        if several:
            parts = [
                (calibrated[id(trees)], place)
                for index in several
                for _, trees, place in proposals[index]
            ]
            counts = [len(proposals[index]) for index in several]
            kept = self._verifiable(*merge_each(counts, gather_trees(parts)))
            bounds = pairwise(kept.trees.starts.tolist())
            for place, (index, (begin, end)) in enumerate(zip(several, bounds, strict=True)):
                size, depth = kept.sizes[place], kept.depths[place]
                sources = kept.sources[begin:end]
                merged[index] = fast_new(MergedTree, ((kept.trees, place), size, depth, sources))
        return merged

    def _verifiable(self, trees: FlatTrees, sources: Ints = _NO_SOURCES) -> _Verifiable:
        if not self._trees:
            kept = best_chains(trees)
            trees, sources = prune_each(trees, kept), sources[kept[: len(sources)]]
        depths = deepest_of(trees.starts, trees.depth)
        return _Verifiable(trees, sources, trees.sizes.tolist(), depths.tolist())

    def learn_draft_cost(
        self, lane: str, orders: Sequence[DraftOrder], trees: FlatTrees, seconds: float
    ) -> float:
        """Counts a draft call as one equal forward for each level of its deepest tree. Returns the
        seconds that were expected of it; 0 for a lane that drafts at no cost."""
        draft = self._draft.get(lane)
        if draft is None:
            return 0.0
        levels = int(trees.depth.max(initial=1))
        context = sum([order.prefix.base for order in orders])
        tokens = sum([len(order.prefix.delta) for order in orders]) + len(trees.tokens)
        predicted_s = levels * draft.predict(context, tokens / levels) + draft.call_s
        draft.observe(context, tokens / levels, seconds, levels)
        return predicted_s

    def usual_draft_s(self, lane: str, orders: Sequence[DraftOrder]) -> float:
        """What such a call of the lane usually takes; 0 while its costs are unknown."""
        cost = self._draft.get(lane)
        return 0.0 if cost is None else draft_call_s(cost, orders) + max(0.0, self._call_s(lane))

    def verify_s(self, context: int, tokens: int) -> float:
        """The expected seconds of a forward."""
        return self._verify.predict(context, tokens)

    def plain_round_s(self, running: Sequence[RequestState]) -> float:
        """The expected seconds of a round in which all of them decode plainly, in one forward."""
        contexts = [request.view.prefilled for request in running if request.prefilled]
        return self._verify.predict(sum(contexts), len(contexts)) + self._handling.plain_s

    def learn_verify(self, verified: Verified) -> None:
        predicted_s = verified.predicted_s
        slower_s = verified.seconds - predicted_s
        if not verified.outcomes or verified.prefill_tokens:
            # Only the last token of a prompt is sampled, so prompts would make draft tokens look
            # cheap.
            return
        self._verify.observe(verified.context, verified.tokens, verified.seconds)
        # Requests that do not draft wait in the same verification for those that do.
        drafting_s = max([outcome.draft_s for outcome in verified.outcomes])
        waits = [outcome.seconds - outcome.verify_s - drafting_s for outcome in verified.outcomes]
        wait_s = max(0.0, sum(waits) / len(waits))
        idle_s = min(wait_s, max(0.0, verified.idle_s - drafting_s))
        self._queueing_s += _WAIT_MEMORY * (wait_s - idle_s - self._queueing_s)
        self._handling.learn(
            idle_s + slower_s,
            predicted_s,
            any([outcome.tried for outcome in verified.outcomes]),
            sorted({outcome.lane for outcome in verified.outcomes if outcome.lane is not None}),
        )

    def share_of_prompts(self, context: int, tokens: int, prefill_tokens: int) -> float:
        """The fraction of a forward's time that its prompt chunks take."""
        whole_s = self._verify.predict(context, tokens)
        if not prefill_tokens or whole_s <= 0.0:
            return 0.0
        return 1.0 - self._verify.predict(context, tokens - prefill_tokens) / whole_s

    def _call_s(self, lane: str) -> float:
        """What a call of the lane takes besides its draft steps, or adds to the verification."""
        draft = self._draft.get(lane)
        return (draft.call_s if draft else 0.0) + self._handling.call_extra_s(lane)

    def load(self, lane: str | None, requests: Sequence[RequestState]) -> LaneLoad:
        """A mean round of these requests, from their statistics so far."""
        rounds = max(1, sum(request.statistics.rounds for request in requests))
        drafted = sum(request.statistics.drafted for request in requests)
        draft = None if lane is None else self._draft.get(lane)
        accepted = sum(request.statistics.accepted for request in requests)
        return LaneLoad(
            requests=len(requests),
            context=sum(request.view.context for request in requests),
            depth=0 if lane is None else max(1, round(drafted / rounds)),
            gain=1 + accepted / rounds,
            draft=draft,
            call_s=0.0 if lane is None else max(0.0, self._call_s(lane)),
        )

"""SpecServe: draft and verify as long as throughput rises, but never violate the TPOT by it.

Algorithm 1 runs in the drafter's loop (`SpecServeRule`), Algorithm 2 in `select`, and both use the
estimator of Algorithm 3. Where the printed algorithms contradict eq. 1-8 and the text, the code
follows the latter: docs/policies/speculation.md lists the differences.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from policies.cost import CostModel
from policies.estimates.calibration import IDENTITY, Calibration, Curve
from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext
from policies.ranges import DRAFT_DEPTH, require
from policies.speculation.forest import (
    Floats,
    context_tokens,
    draft_limits,
    draft_room,
    forest_of,
    verify_seconds,
)
from policies.speculation.slo import tightest_tpot

_INITIAL_CONFIDENCE = 0.7
"""The historical mean confidence before any observation."""
_MEMORY = 4096.0
"""Draft tokens over which the historical mean is taken."""
_TRIED_EVERY = 32
"""Rounds in which only what calls have shown speaks against drafts, of which one has some anyway.
"""
VIOLATES = -1.0
"""Algorithm 3's estimate of a round that violates the TPOT."""


@dataclass(frozen=True, slots=True)
class SpecServeParams:
    max_length: int = 8
    """The most draft steps. The paper limits them by efficiency alone."""
    eliminate: bool = True
    """Off: SpecServe- of Table 2, with the adaptive drafter alone."""

    def __post_init__(self) -> None:
        require(DRAFT_DEPTH, max_length=self.max_length)


def goodput(tokens: float, seconds: float, waiting_s: float, tpot_s: float) -> float:
    """Algorithm 3. A request may gain only one token, so the whole time between two of its verdicts
    must be within its TPOT. Throughput, by eq. 1, counts drafting and verification only."""
    return VIOLATES if seconds + waiting_s > tpot_s else tokens / seconds


@dataclass(slots=True)
class SpecServeRule:
    """Algorithm 1: predict, execute, correct. One decision for the batch before each draft step."""

    verify: CostModel
    draft: CostModel | None
    call_s: float
    """What the draft call takes besides its steps."""
    read: int
    """Committed tokens of the whole batch."""
    context: dict[str, int]
    """Committed tokens of each request."""
    requests: int
    calibrated: Curve
    """From the drafter's confidence to the probability of acceptance, as `select` will see it."""
    mean_confidence: float
    """The mean of what this lane has drafted before, calibrated as well."""
    waiting_s: float
    tpot_s: float
    accepted: float = 0.0
    """NAT of eq. 7: a bonus token for each request, and the path confidences so far."""
    drafts: int = 0
    drafting_s: float = 0.0
    paths: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each request the path confidence of its chain, the drafter's and the calibrated one."""

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.accepted, self.drafts, self.drafting_s = float(self.requests), 0, 0.0
            self.paths = {}
            reach = float(len(requests))
        else:
            reach = self._reach(requests, frontier)
            self.accepted += reach
            self.drafts += sum(len(level) for level in frontier)
        # "Correct": the efficiency of the present draft, with its actual confidences.
        now = self._goodput(self.accepted, self.drafts, self.drafting_s)
        # "Predict": each path continues with the historical mean confidence.
        step_s = self._step_seconds(depth, requests)
        if depth == 0:
            step_s += self.call_s
        more = self._goodput(
            self.accepted + reach * self.mean_confidence,
            self.drafts + len(requests),
            self.drafting_s + step_s,
        )
        self.drafting_s += step_s
        return [more > now] * len(requests)

    def _reach(self, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]) -> float:
        """AR of the deepest level (eq. 8), summed over the requests, which draft chains."""
        drafted = [
            (request, float(level[0]))
            for request, level in zip(requests, frontier, strict=True)
            if len(level)
        ]
        before = [self.paths.get(request, (1.0, 1.0)) for request, _ in drafted]
        confidence = [
            path / raw if raw > 0.0 else 0.0
            for (_, path), (raw, _) in zip(drafted, before, strict=True)
        ]
        probability = self.calibrated(np.array(confidence)).tolist()
        self.paths = {
            request: (path, calibrated * accepted)
            for (request, path), (_, calibrated), accepted in zip(
                drafted, before, probability, strict=True
            )
        }
        return sum(calibrated for _, calibrated in self.paths.values())

    def _step_seconds(self, depth: int, requests: Sequence[str]) -> float:
        if self.draft is None:
            return 0.0
        read = sum(self.context[request] + depth for request in requests)
        return self.draft.predict(read, len(requests))

    def _goodput(self, tokens: float, drafts: int, drafting_s: float) -> float:
        seconds = drafting_s + self.verify.predict(self.read, self.requests + drafts)
        return goodput(tokens, seconds, self.waiting_s, self.tpot_s)


class SpecServe:
    def __init__(
        self,
        params: SpecServeParams | None = None,
        calibrations: Mapping[str, Calibration] = MappingProxyType({}),
    ) -> None:
        """`calibrations`: by lane, the coordinator's own, which it goes on updating."""
        self._params = params or SpecServeParams()
        self._calibrations = calibrations
        self._drafted: dict[str, tuple[float, float]] = {}
        """For each lane the tokens that it has drafted and the sum of their confidences."""
        self._declined = Counter[str]()
        """For each lane the rounds in which it was not called because no draft pays."""

    def mean_confidence(self, lane: str) -> float:
        """`prev_conf` of Algorithm 1."""
        tokens, confidence = self._drafted.get(lane, (0.0, 0.0))
        return confidence / tokens if tokens else _INITIAL_CONFIDENCE

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return [self._plan(batch, context) for batch in batches]

    def _plan(self, batch: LaneBatch, context: RoundContext) -> DraftPlan:
        if batch.lane is None:
            return DraftPlan.plain(batch)
        requests = batch.requests
        limits = draft_limits(batch, self._params.max_length)
        rule = SpecServeRule(
            verify=context.verify,
            draft=context.draft.get(batch.lane),
            call_s=max(0.0, context.call_s.get(batch.lane, 0.0)),
            read=context_tokens(requests),
            context={request.name: request.context for request in requests},
            requests=len(requests),
            calibrated=self._curve(batch.lane),
            mean_confidence=self.mean_confidence(batch.lane),
            waiting_s=context.waiting_s,
            tpot_s=tightest_tpot(requests),
        )
        # A draft call that stops before its first step still reads what was committed.
        if any(rule(0, list(rule.context), ())):
            return DraftPlan(limits, rule)
        # What a call takes and how confident the lane is only calls show: else the first one that
        # is slow, or about hard text, would be the last.
        self._declined[batch.lane] += 1
        trial = replace(rule, call_s=0.0, mean_confidence=1.0)
        if self._declined[batch.lane] % _TRIED_EVERY == 0 and any(trial(0, [*rule.context], ())):
            return DraftPlan(limits, trial)
        return DraftPlan.plain(batch)

    def _curve(self, lane: str) -> Curve:
        calibration = self._calibrations.get(lane)
        return IDENTITY if calibration is None else calibration.chain

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        self._update_means(candidates)
        forest = forest_of(candidates.trees)
        # A leaf is never more probable than its parent, so removing leaves in ascending acceptance,
        # the deepest first on ties, leaves a prefix of this order.
        best_first = np.lexsort((forest.depth, -forest.path))
        most = min(forest.nodes, draft_room(len(candidates), context))
        if self._params.eliminate:
            most = self._eliminate(candidates, forest.path[best_first[:most]], context)
        return forest.mask(best_first[:most])

    def _eliminate(self, candidates: Candidates, path: Floats, context: RoundContext) -> int:
        """Algorithm 2: how many nodes are kept; `path` has their acceptance in descending order."""
        requests = candidates.requests
        drafting_s = max(candidates.drafting_s, default=0.0)
        tpot_s = tightest_tpot(requests)
        # Eq. 6 has no prompts: with a long one even a round without drafts would violate the TPOT,
        # and what has been drafted be lost.
        decoding = context._replace(prefill_tokens=0)
        seconds = drafting_s + verify_seconds(
            decoding, context_tokens(requests), len(requests), len(path)
        )
        accepted = len(requests) + np.concatenate([[0.0], np.cumsum(path)])
        estimates = [
            goodput(tokens, time, context.waiting_s, tpot_s)
            for tokens, time in zip(accepted.tolist(), seconds.tolist(), strict=True)
        ]
        left = len(path)
        while left and (estimates[left] == VIOLATES or estimates[left - 1] > estimates[left]):
            left -= 1
        return left

    def _update_means(self, candidates: Candidates) -> None:
        starts = candidates.trees.starts.tolist()
        confidence, sources = candidates.trees.confidence, candidates.sources
        for lanes, (begin, end) in zip(candidates.lanes, pairwise(starts), strict=True):
            for bit, lane in enumerate(lanes):
                own = confidence[begin:end]
                if sources is not None:
                    own = own[(sources[begin:end] >> bit) & 1 == 1]
                self._count(lane, len(own), float(own.sum(dtype=np.float64)))

    def _count(self, lane: str, drafted: int, confidence: float) -> None:
        tokens, total = self._drafted.get(lane, (0.0, 0.0))
        tokens, total = tokens + drafted, total + confidence
        if tokens > _MEMORY:
            tokens, total = tokens / 2, total / 2
        self._drafted[lane] = (tokens, total)

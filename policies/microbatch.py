"""How many micro-batches to cut each lane's batch into, so that drafting overlaps verification.

More micro-batches keep drafters and verifier busy at the same time, but each costs another forward,
which reads all weights again. Micro-batch p of all lanes is verified in one forward (Spin's Fig.
6b). Spin (section V-B) adds micro-batches until the predicted throughput falls; we take the best
number of those, and split only where that is predicted to gain.

Throughput is predicted by simulating the pipeline with the profiled costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from policies.cost import CostModel
from policies.ranges import MICRO_BATCHES, require

_ROUNDS = 12
"""Simulated rounds, including the first ones, which fill the pipeline and are not counted."""
_FILLING_ROUNDS = 4
_EPSILON = 0.03
"""The search ends where the predicted throughput falls by more than this share, and a batch is
split only if that is predicted to gain more."""
_MOST_PARTS = 8
"""The most micro-batches of a lane."""


@dataclass(frozen=True, slots=True)
class MicroBatchParams:
    parts: int | None = None
    """Always so many for a lane with as many requests; null: as many as are predicted to gain."""

    def __post_init__(self) -> None:
        if self.parts is not None:
            require(MICRO_BATCHES, parts=self.parts)


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """The work of a lane in one round of its whole batch, whose requests are taken as equal."""

    requests: int
    context: int
    """Committed tokens of all requests."""
    depth: int
    """Draft steps; 0 for plain decoding."""
    gain: float
    """Tokens that each request is expected to gain, the target's own included."""
    draft: CostModel | None = None
    """The cost of one draft step. None: drafting costs nothing."""
    call_s: float = 0.0
    """What a draft call takes besides its steps."""
    own_processors: bool = True
    """Else the verifier waits while the lane drafts, and nothing overlaps."""


class _Part(NamedTuple):
    """One micro-batch of one lane."""

    lane: int
    draft_s: float
    shared_s: float
    """Drafting on the verifier's processors."""
    context: float
    rows: int
    gain: float


def split(
    loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams = MicroBatchParams()
) -> int:
    """The number of micro-batches of all lanes: Spin's heuristic, which ends where throughput
    falls. The best of the numbers tried is taken, if it gains more than the error that predictions
    are allowed."""
    if params.parts is not None:
        return params.parts
    predictions = [throughput(loads, 1, verify)]
    most = min(_MOST_PARTS, max((load.requests for load in loads), default=1))
    for count in range(2, most + 1):
        predicted = throughput(loads, count, verify)
        if predicted < (1 - _EPSILON) * max(predictions):
            break
        predictions.append(predicted)
    best = max(predictions)
    return 1 + predictions.index(best) if best > (1 + _EPSILON) * predictions[0] else 1


def throughput(loads: Sequence[LaneLoad], parts: int, verify: CostModel) -> float:
    """Predicted tokens per second, with each lane's batch cut into so many parts, where forward p
    waits until every lane has drafted its micro-batch p."""
    lanes = [_cut(lane, load, parts) for lane, load in enumerate(loads) if load.requests]
    if not lanes:
        return 0.0
    steps = [
        [lane[step] for lane in lanes if step < len(lane)] for step in range(max(map(len, lanes)))
    ]
    costs = [
        verify.predict(sum(part.context for part in step), sum(part.rows for part in step))
        + sum(part.shared_s for part in step)
        for step in steps
    ]
    verdict_s = [0.0] * len(steps)
    drafted_s = dict.fromkeys((lane[0].lane for lane in lanes), 0.0)
    verified_s = filled_s = 0.0
    for round_ in range(_ROUNDS):
        if round_ == _FILLING_ROUNDS:
            filled_s = verified_s
        for index, step in enumerate(steps):
            for part in step:
                start_s = max(drafted_s[part.lane], verdict_s[index])
                drafted_s[part.lane] = start_s + part.draft_s
            ready_s = max(drafted_s[part.lane] for part in step)
            verified_s = verdict_s[index] = max(verified_s, ready_s) + costs[index]
    gain = sum(part.gain for lane in lanes for part in lane)
    return gain * (_ROUNDS - _FILLING_ROUNDS) / (verified_s - filled_s)


def _cut(lane: int, load: LaneLoad, parts: int) -> list[_Part]:
    """Parts whose sizes differ by one at most; fewer where there are fewer requests."""
    parts = min(parts, load.requests)
    bounds = [-(-load.requests * part // parts) for part in range(parts + 1)]
    cuts = []
    for requests in (end - begin for begin, end in pairwise(bounds)):
        context = load.context * requests / load.requests
        step_s = 0.0 if load.draft is None else load.draft.predict(context, requests)
        draft_s = load.depth * step_s + (load.call_s if load.depth else 0.0)
        own_s, shared_s = (draft_s, 0.0) if load.own_processors else (0.0, draft_s)
        rows = requests * (1 + load.depth)
        cuts.append(_Part(lane, own_s, shared_s, context, rows, requests * load.gain))
    return cuts

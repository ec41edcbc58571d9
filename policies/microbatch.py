"""Into how many micro-batches each lane's batch is cut, so that drafting and verifying overlap.

More micro-batches keep lanes and verifier busy at once; each costs one forward more, whose weights
are read anew. Spin (section V-B) splits on until the predicted throughput falls. Two modes:

- `barrier`, Spin's Fig. 6(b): micro-batch p of all lanes is verified in one forward;
- `asynchronous`, ours: the verifier takes whatever is ready, of any lane, in one forward, and
  each lane is cut on its own.

Throughput is predicted by playing the pipeline over the profiled costs.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

from policies.cost import CostModel

Mode = Literal["asynchronous", "barrier"]
Item = TypeVar("Item")

_ROUNDS = 12
_FILLING = 4
"""Rounds that are played for a prediction, and how many of them fill the pipeline first."""


@dataclass(frozen=True, slots=True)
class MicroBatchParams:
    mode: Literal["faster", "asynchronous", "barrier"] = "barrier"
    """`faster`: the one of the two that is predicted to be. The default beat or equalled both
    in most simulated settings (docs/policies/microbatch.md)."""
    epsilon: float = 0.03
    """Splitting ends where the predicted throughput falls by more than this share."""
    max_parts: int = 8
    """Micro-batches of a lane at most."""


@dataclass(frozen=True, slots=True)
class Split:
    mode: Mode
    parts: Sequence[int]
    """The number of micro-batches of each lane; fewer where it has fewer requests (`cut`)."""
    tokens_per_s: float
    """As predicted."""


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane does in one round of its whole batch; its requests count as equal."""

    requests: int
    context: int
    """Their committed tokens together."""
    depth: int
    """Draft steps; 0 for requests that decode plainly."""
    gain: float
    """Tokens that each is expected to gain, the target's own included."""
    draft: CostModel | None = None
    """Of one draft step. None: drafts for nothing."""
    width: int = 1
    call_s: float = 0.0
    """Of drafting, besides its steps."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One micro-batch of one lane."""

    lane: int
    draft_s: float
    context: float
    rows: int
    gain: float


def cut(batch: Sequence[Item], parts: int) -> list[list[Item]]:
    """Into runs whose sizes differ by one at most; into fewer where items run out."""
    parts = min(parts, len(batch))
    bounds = [-(-len(batch) * part // max(1, parts)) for part in range(parts + 1)]
    return [list(batch[begin:end]) for begin, end in pairwise(bounds)]


def split(
    loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams = MicroBatchParams()
) -> Split:
    if params.mode == "barrier":
        return _split_together(loads, verify, params)
    if params.mode == "asynchronous":
        return _split_each(loads, verify, params)
    together, each = _split_together(loads, verify, params), _split_each(loads, verify, params)
    return each if each.tokens_per_s > together.tokens_per_s else together


def _split_together(
    loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams
) -> Split:
    """Spin's heuristic: one number for all lanes, the last one before the fall."""

    def predict(count: int) -> float:
        return throughput(loads, [count] * len(loads), verify, "barrier")

    most = min(params.max_parts, max((load.requests for load in loads), default=1))
    tried = _until_it_falls(predict, most, params.epsilon)
    return Split("barrier", [len(tried)] * len(loads), tried[-1])


def _split_each(loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams) -> Split:
    """One lane after the other by the same rule, and of the tried numbers the best one: here a
    number within epsilon of the best would be a loss that the next lane builds on."""
    parts = [1] * len(loads)
    best = 0.0
    for lane, load in enumerate(loads):

        def predict(count: int, lane: int = lane) -> float:
            changed = [*parts[:lane], count, *parts[lane + 1 :]]
            return throughput(loads, changed, verify, "asynchronous")

        tried = _until_it_falls(predict, min(params.max_parts, load.requests), params.epsilon)
        best = max(tried)
        parts[lane] = 1 + tried.index(best)
    return Split("asynchronous", parts, best)


def _until_it_falls(predict: Callable[[int], float], most: int, epsilon: float) -> list[float]:
    """Predictions for 1, 2, ... micro-batches up to the last number before one that falls by
    more than `epsilon` below the best so far."""
    tried = [predict(1)]
    for count in range(2, most + 1):
        predicted = predict(count)
        if predicted < (1 - epsilon) * max(tried):
            break
        tried.append(predicted)
    return tried


def throughput(
    loads: Sequence[LaneLoad], parts: Sequence[int], verify: CostModel, mode: Mode
) -> float:
    """Predicted tokens per second, lane by lane cut into so many micro-batches."""
    lanes = [_cut_load(lane, load, parts[lane]) for lane, load in enumerate(loads)]
    lanes = [lane for lane in lanes if lane]
    if not lanes:
        return 0.0
    return _play_barrier(lanes, verify) if mode == "barrier" else _play_asynchronous(lanes, verify)


def _cut_load(lane: int, load: LaneLoad, parts: int) -> list[_Part]:
    cuts = []
    for requests in map(len, cut(range(load.requests), parts)):
        context = load.context * requests / load.requests
        step_s = 0.0 if load.draft is None else load.draft.predict(context, requests * load.width)
        rows = requests * (1 + load.depth * load.width)
        draft_s = load.depth * step_s + (load.call_s if load.depth else 0.0)
        cuts.append(_Part(lane, draft_s, context, rows, requests * load.gain))
    return cuts


def _verify_s(parts: Sequence[_Part], verify: CostModel) -> float:
    return verify.predict(sum(part.context for part in parts), sum(part.rows for part in parts))


def _play_barrier(lanes: Sequence[Sequence[_Part]], verify: CostModel) -> float:
    """Forward p waits until every lane has drafted its micro-batch p."""
    steps = [
        [lane[step] for lane in lanes if step < len(lane)] for step in range(max(map(len, lanes)))
    ]
    costs = [_verify_s(step, verify) for step in steps]
    verdict_s = [0.0] * len(steps)
    drafted_s = dict.fromkeys((lane[0].lane for lane in lanes), 0.0)
    verified_s = filled_s = 0.0
    for played in range(_ROUNDS):
        if played == _FILLING:
            filled_s = verified_s
        for index, step in enumerate(steps):
            for part in step:
                begin_s = max(drafted_s[part.lane], verdict_s[index])
                drafted_s[part.lane] = begin_s + part.draft_s
            ready_s = max(drafted_s[part.lane] for part in step)
            verified_s = verdict_s[index] = max(verified_s, ready_s) + costs[index]
    gain = sum(part.gain for lane in lanes for part in lane)
    return gain * (_ROUNDS - _FILLING) / (verified_s - filled_s)


def _play_asynchronous(lanes: Sequence[Sequence[_Part]], verify: CostModel) -> float:
    """The verifier, whenever it is free, takes all that is drafted by then."""
    queues = {lane[0].lane: deque(lane) for lane in lanes}
    drafting: list[tuple[float, int]] = []
    """When each busy lane will have drafted the first of its queue."""
    for lane, queue in queues.items():
        heapq.heappush(drafting, (queue[0].draft_s, lane))
    count = sum(map(len, lanes))
    now = gained = filled_s = filled_gain = 0.0
    verdicts = 0
    while verdicts < _ROUNDS * count:
        now = max(now, drafting[0][0])
        ready = []
        while drafting and drafting[0][0] <= now:
            done_s, lane = heapq.heappop(drafting)
            ready.append(queues[lane].popleft())
            if queues[lane]:
                heapq.heappush(drafting, (done_s + queues[lane][0].draft_s, lane))
        now += _verify_s(ready, verify)
        for part in ready:
            if not queues[part.lane]:
                heapq.heappush(drafting, (now + part.draft_s, part.lane))
            queues[part.lane].append(part)
        verdicts += len(ready)
        gained += sum(part.gain for part in ready)
        if verdicts < _FILLING * count:
            filled_s, filled_gain = now, gained
    return (gained - filled_gain) / (now - filled_s)

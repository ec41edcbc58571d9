"""How many micro-batches to cut each lane's batch into, so that drafting overlaps verification.

More micro-batches keep drafters and verifier busy at the same time, but each costs another forward,
which reads all weights again. Spin (section V-B) adds micro-batches until the predicted throughput
falls; we take the best number of those, and split only where that is predicted to gain. There are
two modes:

- `barrier`, Spin's Fig. 6(b): micro-batch p of all lanes is verified in one forward;
- `asynchronous`, ours: the verifier takes whatever any lane has drafted in one forward, and each
  lane has its own number of micro-batches.

Throughput is predicted by simulating the pipeline with the profiled costs.
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
"""Simulated rounds, including the first ones, which fill the pipeline and are not counted."""
_FILLING_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class MicroBatchParams:
    mode: Literal["faster", "asynchronous", "barrier"] = "barrier"
    """`faster`: whichever of the two is predicted to be faster. The default beat or equalled both
    others in most simulated settings (docs/policies/microbatch.md)."""
    epsilon: float = 0.03
    """The search ends where the predicted throughput falls by more than this share, and a batch is
    split only if that is predicted to gain more."""
    max_parts: int = 8
    """The most micro-batches of a lane."""
    parts: int | None = None
    """Always so many for a lane with as many requests; null: as many as are predicted to gain."""

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts < 1:
            raise ValueError(f"parts is at least 1, or null, and not {self.parts}")


@dataclass(frozen=True, slots=True)
class Split:
    mode: Mode
    parts: Sequence[int]
    """The number of micro-batches of each lane; a lane with fewer requests has fewer (`cut`)."""
    tokens_per_s: float
    """The predicted throughput."""


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
    """Of one draft step. None: drafting costs nothing."""
    width: int = 1
    call_s: float = 0.0
    """What a draft call takes besides its steps."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One micro-batch of one lane."""

    lane: int
    draft_s: float
    context: float
    rows: int
    gain: float


def cut(batch: Sequence[Item], parts: int) -> list[list[Item]]:
    """Consecutive parts whose sizes differ by one at most; fewer where there are fewer items."""
    parts = min(parts, len(batch))
    bounds = [-(-len(batch) * part // max(1, parts)) for part in range(parts + 1)]
    return [list(batch[begin:end]) for begin, end in pairwise(bounds)]


def split(
    loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams = MicroBatchParams()
) -> Split:
    if params.parts is not None:
        mode: Mode = "barrier" if params.mode == "faster" else params.mode
        parts = [params.parts] * len(loads)
        return Split(mode, parts, throughput(loads, parts, verify, mode))
    if params.mode == "barrier":
        return _split_barrier(loads, verify, params)
    if params.mode == "asynchronous":
        return _split_asynchronous(loads, verify, params)
    barrier = _split_barrier(loads, verify, params)
    asynchronous = _split_asynchronous(loads, verify, params)
    return asynchronous if asynchronous.tokens_per_s > barrier.tokens_per_s else barrier


def _split_barrier(loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams) -> Split:
    """Spin's heuristic, which ends where throughput falls: one number for all lanes. Of the numbers
    tried the best, if its gain is more than the error that predictions are allowed."""

    def predict(count: int) -> float:
        return throughput(loads, [count] * len(loads), verify, "barrier")

    most = min(params.max_parts, max((load.requests for load in loads), default=1))
    predictions = _predictions_until_fall(predict, most, params.epsilon)
    best = max(predictions)
    if best <= (1 + params.epsilon) * predictions[0]:
        best = predictions[0]
    return Split("barrier", [1 + predictions.index(best)] * len(loads), best)


def _split_asynchronous(
    loads: Sequence[LaneLoad], verify: CostModel, params: MicroBatchParams
) -> Split:
    """One lane after the other by the same rule, but with the best of the numbers tried instead of
    the last: the losses within epsilon of several lanes would add up."""
    parts = [1] * len(loads)
    best = 0.0
    for lane, load in enumerate(loads):

        def predict(count: int, lane: int = lane) -> float:
            changed = [*parts[:lane], count, *parts[lane + 1 :]]
            return throughput(loads, changed, verify, "asynchronous")

        most = min(params.max_parts, load.requests)
        predictions = _predictions_until_fall(predict, most, params.epsilon)
        best = max(predictions)
        parts[lane] = 1 + predictions.index(best)
    return Split("asynchronous", parts, best)


def _predictions_until_fall(
    predict: Callable[[int], float], most: int, epsilon: float
) -> list[float]:
    """Throughputs with 1, 2, ... up to `most` micro-batches, ending before the first that falls by
    more than `epsilon` below the best so far."""
    predictions = [predict(1)]
    for count in range(2, most + 1):
        predicted = predict(count)
        if predicted < (1 - epsilon) * max(predictions):
            break
        predictions.append(predicted)
    return predictions


def throughput(
    loads: Sequence[LaneLoad], parts: Sequence[int], verify: CostModel, mode: Mode
) -> float:
    """Predicted tokens per second, with each lane's batch cut into its number of `parts`."""
    lanes = [_cut_load(lane, load, parts[lane]) for lane, load in enumerate(loads)]
    lanes = [lane for lane in lanes if lane]
    if not lanes:
        return 0.0
    simulate = _simulate_barrier if mode == "barrier" else _simulate_asynchronous
    return simulate(lanes, verify)


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


def _simulate_barrier(lanes: Sequence[Sequence[_Part]], verify: CostModel) -> float:
    """Throughput where forward p waits until every lane has drafted its micro-batch p."""
    steps = [
        [lane[step] for lane in lanes if step < len(lane)] for step in range(max(map(len, lanes)))
    ]
    costs = [_verify_s(step, verify) for step in steps]
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


def _simulate_asynchronous(lanes: Sequence[Sequence[_Part]], verify: CostModel) -> float:
    """Throughput where the verifier, whenever it is free, takes all that is drafted by then."""
    queues = {lane[0].lane: deque(lane) for lane in lanes}
    drafting: list[tuple[float, int]] = []
    """For each busy lane, when it will have drafted the first part of its queue."""
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
        if verdicts < _FILLING_ROUNDS * count:
            filled_s, filled_gain = now, gained
    return (gained - filled_gain) / (now - filled_s)

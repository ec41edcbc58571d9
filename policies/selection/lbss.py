"""LBSS: learning-based SSM selection (Spin, section IV, Algorithms 1 and 2).

The slots of each request form epochs, as in Figure 8: α slots of exploration in chunks of β, with a
random lane for each chunk; then 2^k slots of exploitation on the lane given by a maximum-weight
matching, by mean goodput, of all requests that exploit. docs/policies/selection.md lists deviations
from the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.protocols import RoundContext
from policies.ranges import COUNT, require
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.lane_capacity import LaneCapacity, unmatched_values
from policies.selection.membership import Membership


@dataclass(frozen=True, slots=True)
class LbssParams:
    alpha: int = 8
    """Slots of exploration in each epoch. Regret grows with log T only if α is large against the
    gap between lanes; short requests are better off with a small α."""
    beta: int = 2
    """Slots of a chunk, during which a request stays on one lane; α must be a multiple of it."""
    switch_weight: float = 1000.0
    """λ of eq. 6: tokens/s per second of re-computation, spread over the slots of a decision. At
    goodput g and slot time τ, re-computation loses g/τ: 1000 with 50 tokens/s and 50 ms."""

    def __post_init__(self) -> None:
        require(COUNT, alpha=self.alpha, switch_weight=self.switch_weight)
        if self.beta < 1 or self.alpha < self.beta or self.alpha % self.beta:
            raise ValueError(f"alpha is a multiple of beta, not {self.alpha} of {self.beta}")


@dataclass(slots=True)
class _Epoch:
    """The present epoch of a request. Slots count from the start of the epoch, which begins with
    exploration."""

    number: int = 1
    """k."""
    slot: int = 0
    decided_until: int = 0
    """The slot at which the present decision ends."""
    lane: str | None = None
    next_drawn: str | None = None
    """The lane drawn for the next chunk, one chunk ahead so that it can catch up."""
    last_lane: str | None = None
    """The lane that drafted last: x_i(t-1) of eq. 6."""
    unmatched: int = 0
    """How many matchings in a row had no place for the request."""


class Lbss:
    def __init__(self, params: LbssParams = LbssParams(), seed: int = 0) -> None:
        self._params = params
        self._rng = np.random.default_rng(seed)
        self._membership = Membership()
        self._goodput = MeanGoodput()
        self._epochs: dict[str, _Epoch] = {}
        self._mapping: dict[str, str | None] = {}
        self._due = False

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        changed = self._membership.changed(requests, lanes)
        if changed or self._due:
            self._decide(lanes)
            self._due = False
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """If exploration comes next, the lane drawn one chunk ahead; if exploitation, the lane with
        the best estimate (Spin, section IV-C)."""
        epoch = self._epochs.get(request)
        if epoch is None or request not in self._membership.requests:
            return None
        if self._explores_next(epoch):
            return epoch.next_drawn if epoch.next_drawn in self._membership.lanes else None
        # Among equals the present lane comes first.
        lanes = sorted(self._membership.lanes.values(), key=lambda lane: lane.name != epoch.lane)
        best = max(
            lanes, key=lambda lane: self._goodput.estimate(request, lane.drafter), default=None
        )
        return best.name if best else None

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._learn(outcome)

    def _learn(self, outcome: RoundOutcome) -> None:
        epoch = self._epochs.get(outcome.request)
        if epoch is None or outcome.request not in self._membership.requests:
            return
        drafter, seconds = self._membership.slot(outcome)
        if drafter is not None:
            epoch.last_lane = outcome.lane
            if seconds is not None and self._explores(epoch):
                self._goodput.observe(outcome.request, drafter, outcome.committed / seconds)
        epoch.slot += 1
        if epoch.slot == self._params.alpha + 2**epoch.number:
            epoch.number += 1
            epoch.slot = epoch.decided_until = 0
        self._due |= epoch.slot >= epoch.decided_until

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._epochs.pop(request, None)
        self._goodput.forget(request)
        self._mapping.pop(request, None)

    def _explores(self, epoch: _Epoch) -> bool:
        return epoch.slot < self._params.alpha

    def _explores_next(self, epoch: _Epoch) -> bool:
        """Whether the next decision starts a chunk of exploration within β slots."""
        if epoch.slot >= epoch.decided_until:
            return self._explores(epoch)
        if self._explores(epoch):
            return epoch.decided_until < self._params.alpha
        return epoch.slot >= self._params.alpha + 2**epoch.number - self._params.beta

    def _decide(self, lanes: Sequence[LaneView]) -> None:
        """Chunks that go on keep their places; then new chunks are drawn; then the requests that
        exploit are matched."""
        here = {name: self._epochs.setdefault(name, _Epoch()) for name in self._membership.requests}
        if not lanes:
            self._mapping = dict.fromkeys(here)
            return
        capacity = LaneCapacity(lanes)
        exploring = {name: epoch for name, epoch in here.items() if self._explores(epoch)}
        exploiting = {name: epoch for name, epoch in here.items() if name not in exploring}
        self._mapping = {}
        starting: dict[str, _Epoch] = {}
        for name, epoch in exploring.items():
            goes_on = epoch.slot < epoch.decided_until
            if goes_on and (epoch.lane is None or capacity.take(epoch.lane)):
                self._mapping[name] = epoch.lane
            else:
                starting[name] = epoch
        self._start_chunks(starting, capacity, lanes)
        if exploiting:
            self._exploit(exploiting, capacity, lanes)

    def _start_chunks(
        self, starting: Mapping[str, _Epoch], capacity: LaneCapacity, lanes: Sequence[LaneView]
    ) -> None:
        drawn_lanes: dict[str, str] = {}
        for name, epoch in starting.items():
            drawn = self._membership.lanes.get(epoch.next_drawn or "")
            drawn_lanes[name] = drawn.name if drawn else self._draw(lanes)
            epoch.next_drawn = self._draw(lanes)
            epoch.decided_until = min(epoch.slot + self._params.beta, self._params.alpha)
        for name, lane in capacity.assign_drawn(drawn_lanes, self._rng).items():
            starting[name].lane = self._mapping[name] = lane

    def _draw(self, lanes: Sequence[LaneView]) -> str:
        return lanes[int(self._rng.integers(len(lanes)))].name

    def _exploit(
        self, exploiting: Mapping[str, _Epoch], capacity: LaneCapacity, lanes: Sequence[LaneView]
    ) -> None:
        names = list(exploiting)
        due = {name for name, epoch in exploiting.items() if epoch.slot >= epoch.decided_until}
        for name in due:
            epoch = exploiting[name]
            epoch.unmatched = epoch.unmatched + 1 if epoch.lane is None else 0
        values = self._goodput.matrix(names, lanes) - self._switching(exploiting, lanes)
        precedence = np.array([epoch.unmatched for epoch in exploiting.values()], np.float64)
        unmatched = unmatched_values(values, precedence)
        staying = {name: epoch.lane for name, epoch in exploiting.items()}
        for name, lane in capacity.match(names, values, unmatched, staying).items():
            epoch = exploiting[name]
            if name in due or (lane is None) != (epoch.lane is None):
                end = self._params.alpha + 2**epoch.number
                # Without a place, or with one after having had none, the decision lasts only for a
                # chunk, so that requests take turns where places are short.
                until_end = lane is not None and not epoch.unmatched
                epoch.decided_until = end if until_end else min(end, epoch.slot + self._params.beta)
            epoch.lane = self._mapping[name] = lane

    def _switching(
        self, exploiting: Mapping[str, _Epoch], lanes: Sequence[LaneView]
    ) -> NDArray[np.float64]:
        """λ·c_ij of eq. 6, spread over the slots that the decision lasts."""
        costs = np.zeros((len(exploiting), len(lanes)))
        for row, (name, epoch) in enumerate(exploiting.items()):
            slots = self._params.alpha + 2**epoch.number - epoch.slot
            price = self._params.switch_weight * self._membership.requests[name].context / slots
            for column, lane in enumerate(lanes):
                if lane.name != epoch.last_lane:
                    costs[row, column] = price * lane.catch_up_s
        return costs


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


class MeanGoodput:
    """g̃ of Spin: the mean goodput of a request with a drafter, with a prior over all requests. The
    bandit's arms are drafters: all lanes of a drafter share its estimates."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, _Mean]] = {}
        self._drafters: dict[str, _Mean] = {}

    def observe(self, request: str, drafter: str, goodput: float) -> None:
        pair = self._pairs.setdefault(request, {}).setdefault(drafter, _Mean())
        for mean in (pair, self._drafters.setdefault(drafter, _Mean())):
            mean.add(goodput)

    def estimate(self, request: str, drafter: str) -> float:
        """The mean of the request with this drafter; else of all requests with it; else of all
        requests with any drafter."""
        mean = self._pairs.get(request, {}).get(drafter) or self._drafters.get(drafter)
        if mean is None:
            every = self._drafters.values()
            mean = _Mean(sum(one.total for one in every), sum(one.count for one in every))
        return mean.value

    def matrix(self, requests: Sequence[str], lanes: Sequence[LaneView]) -> NDArray[np.float64]:
        """Estimates, with a row for each request and a column for each lane."""
        drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        estimates = np.array(
            [[self.estimate(name, drafter) for drafter in drafters] for name in requests]
        )
        return estimates[:, [drafters.index(lane.drafter) for lane in lanes]]

    def forget(self, request: str) -> None:
        self._pairs.pop(request, None)

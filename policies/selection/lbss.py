"""LBSS: learning-based SSM selection (Spin, section IV, Algorithms 1 and 2).

Each request lives in epochs of its own slots, as in Figure 8: α slots of exploration in chunks of
β, a random lane for each chunk; then 2^k slots on the lane of a maximum-weight matching of all
requests that exploit, by mean goodput. How this reads the printed text: docs/policies/selection.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.pooling import Statistics
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.lane_capacity import LaneCapacity, as_many_as_fit
from policies.selection.mean_goodput import MeanGoodput
from policies.selection.membership import Membership


@dataclass(frozen=True, slots=True)
class LbssParams:
    alpha: int = 8
    """Slots of exploration in each epoch. Regret grows with log T only where α is large against
    the gap between lanes; short requests are better off with a small one."""
    beta: int = 2
    """Slots of a chunk, through which a request stays on one lane. Divides α."""
    switch_weight: float = 1000.0
    """λ of eq. 6, in (tokens/s) per second of re-computation, over the slots that a decision
    lasts. Where goodput is g and a slot takes τ, re-computation loses g/τ: 50 tokens/s in slots
    of 50 ms are 1000."""

    def __post_init__(self) -> None:
        if self.beta < 1 or self.alpha < self.beta or self.alpha % self.beta:
            raise ValueError(f"alpha is a multiple of beta, not {self.alpha} of {self.beta}")
        if self.switch_weight < 0:
            raise ValueError(f"switch_weight is not negative, as {self.switch_weight} is")


@dataclass(slots=True)
class _Epoch:
    """Where a request stands. Slots count from the epoch's start, exploration first."""

    number: int = 1
    slot: int = 0
    decided_until: int = 0
    """The slot at which the present decision ends."""
    lane: str | None = None
    ahead: str | None = None
    """The lane drawn for the next chunk, so that catch-up can begin there."""
    last_lane: str | None = None
    """Drafted last: x_i(t-1) of eq. 6."""
    left_out: int = 0
    """Times in a row that a matching had no place for it."""


class Lbss:
    def __init__(self, params: LbssParams = LbssParams(), seed: int = 0) -> None:
        self._params = params
        self._rng = np.random.default_rng(seed)
        self._roster = Membership()
        self._goodput = MeanGoodput()
        self._epochs: dict[str, _Epoch] = {}
        self._mapping: dict[str, str | None] = {}
        self._due = False

    def assign(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], now: float
    ) -> Mapping[str, str | None]:
        changed = self._roster.changed(requests, lanes)
        if changed or self._due:
            self._decide(lanes)
            self._due = False
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """Towards exploration the lane drawn one chunk ahead, towards exploitation the one of the
        best estimate (Spin, section IV-C)."""
        epoch = self._epochs.get(request)
        if epoch is None or request not in self._roster.requests:
            return None
        if self._explores_next(epoch):
            return epoch.ahead if epoch.ahead in self._roster.lanes else None
        # The lane where it is comes first among equals.
        lanes = sorted(self._roster.lanes.values(), key=lambda lane: lane.name != epoch.lane)
        best = max(
            lanes, key=lambda lane: self._goodput.estimate(request, lane.drafter), default=None
        )
        return best.name if best else None

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._learn(outcome)

    def _learn(self, outcome: RoundOutcome) -> None:
        epoch = self._epochs.get(outcome.request)
        if epoch is None:
            return
        drafter, seconds = self._roster.slot(outcome)
        if drafter is not None:
            epoch.last_lane = outcome.lane
            if seconds is not None and self._explores(epoch):
                self._goodput.observe(outcome.request, drafter, outcome.committed / seconds)
        epoch.slot += 1
        if epoch.slot == self._params.alpha + 2**epoch.number:
            epoch.number += 1
            epoch.slot = epoch.decided_until = 0
        self._due |= epoch.slot >= epoch.decided_until

    def observe_score(
        self, request: str, lane: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        """LBSS learns from its own exploration only."""

    def forget(self, request: str) -> None:
        self._epochs.pop(request, None)
        self._goodput.forget(request)
        self._mapping.pop(request, None)

    def export(self) -> Statistics:
        return self._goodput.export()

    def pool(self, others: Statistics) -> None:
        self._goodput.pool(others)

    def _explores(self, epoch: _Epoch) -> bool:
        return epoch.slot < self._params.alpha

    def _explores_next(self, epoch: _Epoch) -> bool:
        """Whether the next decision is a chunk of exploration, and not more than one away."""
        if epoch.slot >= epoch.decided_until:
            return self._explores(epoch)
        if self._explores(epoch):
            return epoch.decided_until < self._params.alpha
        return epoch.slot >= self._params.alpha + 2**epoch.number - self._params.beta

    def _decide(self, lanes: Sequence[LaneView]) -> None:
        """Chunks that go on keep their places; then those that begin; then the matching."""
        here = {name: self._epochs.setdefault(name, _Epoch()) for name in self._roster.requests}
        if not lanes:
            self._mapping = dict.fromkeys(here)
            return
        seats = LaneCapacity(lanes)
        exploring = {name: epoch for name, epoch in here.items() if self._explores(epoch)}
        exploiting = {name: epoch for name, epoch in here.items() if name not in exploring}
        self._mapping = {}
        starting: dict[str, _Epoch] = {}
        for name, epoch in exploring.items():
            goes_on = epoch.slot < epoch.decided_until
            if goes_on and (epoch.lane is None or seats.take(epoch.lane)):
                self._mapping[name] = epoch.lane
            else:
                starting[name] = epoch
        self._start_chunks(starting, seats, lanes)
        if exploiting:
            self._exploit(exploiting, seats, lanes)

    def _start_chunks(
        self, starting: Mapping[str, _Epoch], seats: LaneCapacity, lanes: Sequence[LaneView]
    ) -> None:
        wishes: dict[str, str] = {}
        for name, epoch in starting.items():
            drawn = self._roster.lanes.get(epoch.ahead or "")
            wishes[name] = drawn.name if drawn else self._draw(lanes)
            epoch.ahead = self._draw(lanes)
            epoch.decided_until = min(epoch.slot + self._params.beta, self._params.alpha)
        for name, lane in seats.draw(wishes, self._rng).items():
            starting[name].lane = self._mapping[name] = lane

    def _draw(self, lanes: Sequence[LaneView]) -> str:
        return lanes[int(self._rng.integers(len(lanes)))].name

    def _exploit(
        self, exploiting: Mapping[str, _Epoch], seats: LaneCapacity, lanes: Sequence[LaneView]
    ) -> None:
        names = list(exploiting)
        due = {name for name, epoch in exploiting.items() if epoch.slot >= epoch.decided_until}
        for name in due:
            epoch = exploiting[name]
            epoch.left_out = epoch.left_out + 1 if epoch.lane is None else 0
        values = self._goodput.matrix(names, lanes) - self._switching(exploiting, lanes)
        precedence = np.array([epoch.left_out for epoch in exploiting.values()], np.float64)
        unmatched = as_many_as_fit(values, precedence)
        staying = {name: epoch.lane for name, epoch in exploiting.items()}
        for name, lane in seats.match(names, values, unmatched, staying).items():
            epoch = exploiting[name]
            if name in due or (lane is None) != (epoch.lane is None):
                end = self._params.alpha + 2**epoch.number
                # Without a place, or with one out of turn, for a chunk only: others wait as well.
                settled = lane is not None and not epoch.left_out
                epoch.decided_until = end if settled else min(end, epoch.slot + self._params.beta)
            epoch.lane = self._mapping[name] = lane

    def _switching(
        self, exploiting: Mapping[str, _Epoch], lanes: Sequence[LaneView]
    ) -> NDArray[np.float64]:
        """λ·c_ij of eq. 6, spread over the slots that are left to win it back."""
        costs = np.zeros((len(exploiting), len(lanes)))
        for row, (name, epoch) in enumerate(exploiting.items()):
            slots = self._params.alpha + 2**epoch.number - epoch.slot
            price = self._params.switch_weight * self._roster.requests[name].context / slots
            for column, lane in enumerate(lanes):
                if lane.name != epoch.last_lane:
                    costs[row, column] = price * lane.catch_up_s
        return costs

"""What the coordinator asks of its policies. Each has several real implementations here.

Time is an argument everywhere: seconds on the coordinator's clock, real or virtual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.cost import CostModel
from policies.flat_trees import FlatTrees
from policies.request import LaneView, RequestView, RoundOutcome

Mask = NDArray[np.bool_]


class Selection(Protocol):
    """Which lane drafts for which request."""

    def assign(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], now: float
    ) -> Mapping[str, str | None]:
        """A lane for each request, or None: decode plainly. No lane beyond its capacity."""
        ...

    def likely_next(self, request: str) -> str | None:
        """Where the request will probably go next, to catch up there in idle time."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def observe_score(
        self, request: str, lane: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        """Counterfactual: in `seconds` of drafting and verifying, `lane` would have gained
        `tokens` per round on tokens that another source has committed meanwhile; they would have
        taken it so many `slots`."""
        ...

    def forget(self, request: str) -> None: ...


class RoundContext(NamedTuple):
    """What a round of one micro-batch costs."""

    verify: CostModel
    draft: Mapping[str, CostModel]
    """By lane: one draft step. Lanes without a cost (lookup) draft for nothing."""
    verify_budget: int
    """B_1 of AdaServe, and its alone: the tokens up to which a verification's time hardly grows,
    roots included."""
    draft_budget: int
    """B_2: those of a draft step."""
    most_tokens: int
    """That one forward takes at all, of whichever model."""
    other_tokens: int = 0
    """Prefill chunks that ride in the same verification."""
    trees: bool = True
    """Whether the verifier takes trees; where it takes chains only, whatever is drafted becomes
    one."""
    waiting_s: float = 0.0
    """Between two verdicts of a request, besides its own drafting and verification: queueing
    behind other micro-batches, and transport."""
    handling_s: float = 0.0
    """What a round that drafts takes on top of drafting and verification, and a plain one does
    not: planning, orders, choosing."""
    call_s: Mapping[str, float] = MappingProxyType({})
    """By lane: what a draft call takes besides its steps, such as the way to the drafter and back.
    Less than nothing where part of `handling_s` is done meanwhile. Lanes that are not in it:
    nothing."""


class Ask(NamedTuple):
    """Who may draft on one lane in this round."""

    lane: str | None
    """None: these only wait for the same verdict."""
    batch: Sequence[RequestView]
    unread: Sequence[int] = ()
    """Committed tokens that the lane has not read, of each request of the batch: the first draft
    step reads them. Empty: one each."""


class DraftLimit(NamedTuple):
    """Depth 0: decode this request plainly in this round."""

    depth: int
    width: int = 1


class StepRule(Protocol):
    """Runs in the drafter's loop, so it is picklable and needs nothing but its own fields."""

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        """Which requests draft one level more (engine.protocol.DraftStep, as plain arguments)."""
        ...


@dataclass(frozen=True, slots=True)
class DraftPlan:
    limits: Sequence[DraftLimit]
    """One for each request of the batch, in its order."""
    rule: StepRule | None = None
    """None: draft to the limits."""

    @classmethod
    def plain(cls, ask: Ask) -> "DraftPlan":
        return cls([DraftLimit(0)] * len(ask.batch))


@dataclass(slots=True)
class Candidates:
    """What the drafters propose for each request of a round: their trees merged, confidences
    calibrated. Columns, one place for each request."""

    requests: Sequence[RequestView]
    trees: FlatTrees
    drafting_s: Sequence[float]
    """What drafting it has cost; spent, whatever is verified."""
    lanes: Sequence[Sequence[str]]
    """Who has proposed some of it."""
    sources: NDArray[np.int64] | None = None
    """Of each node of all trees: bit i is set where the i-th of its request's lanes has proposed
    it. None: all have, all nodes."""

    def __len__(self) -> int:
        return len(self.requests)


class Speculation(Protocol):
    """How much is drafted, and what of it is verified."""

    def plan(self, asks: Sequence[Ask], context: RoundContext, now: float) -> list[DraftPlan]:
        """Before the lanes of one micro-batch draft, one plan for each. A request may stand in
        several: free lanes draft beside its own."""
        ...

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        """Of all nodes those to verify, ancestors included, within the verify budget."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None: ...

    def observe_read(
        self, request: str, lane: str, matched: Sequence[bool], covered: Sequence[bool]
    ) -> None:
        """Counterfactual: which of the output's tokens that `lane` has just read it would have
        drafted itself; `covered`: those that free lanes had proposed."""
        ...

    def forget(self, request: str) -> None: ...


class Schedule(Protocol):
    """Who runs. All events come in the order in which they happened."""

    def arrive(self, request: RequestView, now: float) -> None: ...

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        """At most `slots` of `requests`, the most preferred first. The coordinator gives out
        batch slots and KV in this order; a running one that it does not reach is preempted."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None: ...

    def forget(self, request: str) -> None: ...

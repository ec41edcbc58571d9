"""The interfaces of the coordinator's policies: selection, speculation and schedule.

Policies read no clock: `now` is in seconds of the coordinator's clock, which the simulator replaces
by virtual time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.cost import CostModel
from policies.estimates.acceptance import AcceptanceEstimates
from policies.flat_trees import FlatTrees
from policies.request import LaneView, RequestView, RoundOutcome

Mask = NDArray[np.bool_]


class FirstTokens(NamedTuple):
    """What requests that wait for their first token in this round's verification need."""

    due_s: Sequence[float] = ()
    """When each of those with a TTFT has to have it."""
    prompt_tokens: int = 0
    """Tokens of their prompts that the verification reads."""


NO_FIRST_TOKENS = FirstTokens()


class RoundContext(NamedTuple):
    """The costs and limits of a round of one micro-batch, and what drafts are expected to gain."""

    verify: CostModel
    """The cost of one verification."""
    draft: Mapping[str, CostModel]
    """The cost of one draft step, by lane. Lanes that are missing here are lookups, which cost no
    more than the handling of a round."""
    verify_budget: int
    """B_1 of AdaServe, roots included: the tokens up to which the time of a verification hardly
    grows. Only AdaServe's policies keep to it."""
    draft_budgets: Mapping[str, int]
    """B_2 of AdaServe: the same for a draft step, by lane; lanes that are missing here (lookup)
    have none."""
    most_tokens: int
    """The most tokens that one forward of any model takes."""
    acceptance: AcceptanceEstimates
    """The estimates of every request with every lane; the coordinator adds to them what is drafted
    and read."""
    prefill_tokens: int = 0
    """Tokens of prefill chunks in the same verification."""
    trees: bool = True
    """Whether the verifier takes trees; otherwise each draft tree is cut down to a chain."""
    waiting_s: float = 0.0
    """Time between two verdicts of a request besides drafting and verification: queueing after
    other micro-batches, and transport."""
    handling_s: float = 0.0
    """What a round with drafts takes beyond drafting and verification and a plain round does not:
    planning, sending orders, selecting nodes."""
    active: int = 0
    """Requests that run, whether they are in this micro-batch or not; 0 where it is not known."""
    call_s: Mapping[str, float] = MappingProxyType({})
    """What a draft call takes besides its steps, such as transport, by lane; 0 where missing.
    Negative where part of `handling_s` overlaps with the call."""
    first_tokens: FirstTokens = NO_FIRST_TOKENS


class Selection(Protocol):
    """Which lane drafts for which request."""

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        """A lane for each request, never more of them than its capacity; None: only lookups
        draft for it."""
        ...

    def likely_next(self, request: str) -> str | None:
        """The lane whose drafter should read the request in idle time: because the request will
        probably switch to it, or to learn how it would have drafted."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def forget(self, request: str) -> None: ...


class LaneBatch(NamedTuple):
    """The requests for which one lane may draft in this round."""

    lane: str | None
    """None: no lane drafts for these requests, but they are verified in the same forward."""
    requests: Sequence[RequestView]


class DraftLimit(NamedTuple):
    """The largest draft tree of a request; depth 0 is plain decoding."""

    depth: int
    width: int = 1


class StepRule(Protocol):
    """Decides in the drafter's own process whether to draft another level, so it must be picklable
    and use nothing but its own fields."""

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        """Whether each of `requests` drafts one more level after `depth` levels; `frontier` has the
        path confidences of its deepest level (the fields of engine.protocol.DraftStep)."""
        ...


@dataclass(frozen=True, slots=True)
class DraftPlan:
    limits: Sequence[DraftLimit]
    """One for each request of the lane's batch, in its order."""
    rule: StepRule | None = None
    """None: draft up to the limits."""

    @classmethod
    def plain(cls, batch: LaneBatch) -> "DraftPlan":
        return cls([DraftLimit(0)] * len(batch.requests))


@dataclass(slots=True)
class Candidates:
    """The draft trees of a round: of each request one, merged from all its drafters' proposals,
    with calibrated confidences. All sequences have one element per request, except `sources`."""

    requests: Sequence[RequestView]
    trees: FlatTrees
    drafting_s: Sequence[float]
    """The time spent on drafting, which no selection of nodes can save."""
    lanes: Sequence[Sequence[str]]
    """The lanes that have proposed nodes of the tree."""
    sources: NDArray[np.int64] | None = None
    """For each node of all trees, bit i is set where the i-th of its request's lanes has proposed
    it. None: every lane has proposed every node of its request."""

    def __len__(self) -> int:
        return len(self.requests)


class Speculation(Protocol):
    """How much is drafted, and what of it is verified."""

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        """A plan for each batch of one micro-batch, before its lanes draft. A request may be in
        several batches: lookups draft beside its own lane."""
        ...

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        """The nodes to verify, with all their ancestors, as a mask over all trees' nodes; no more
        than one forward takes."""
        ...


class Schedule(Protocol):
    """Which requests run. All events arrive in the order in which they happened."""

    def arrive(self, request: RequestView, now: float) -> None: ...

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        """At most `slots` of `requests`, the most preferred first. The coordinator allocates batch
        slots and KV cache in this order and preempts running requests that get none."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None: ...

    def forget(self, request: str) -> None: ...

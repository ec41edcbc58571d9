"""The state of one request in the coordinator, from admission until it leaves."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from actors.coordinator.round_draft import NO_DRAFT, RoundDraft
from actors.coordinator.stream import Cancelled, RequestFailed, Statistics, Stream
from engine.protocol import Finish
from engine.request import ServedRequest
from policies.protocols import NO_FIRST_TOKENS, FirstTokens
from policies.request import RequestView


class Stage(Enum):
    """A request is in one stage at a time; it is preempted or moved only in WAITING and READY, so
    between rounds."""

    WAITING = auto()
    """Holds no batch slot; the verifier may drop its KV."""
    READY = auto()
    """Holds a batch slot and is between two rounds."""
    DRAFTING = auto()
    DRAFTED = auto()
    """Ready for the verifier, perhaps with an empty draft tree."""
    VERIFYING = auto()
    GONE = auto()


_MOST_DRAFTER_LOSSES = 2

WAITING, READY, DRAFTING, DRAFTED, VERIFYING, GONE = Stage
"""Module-level names, because Python 3.11 takes 0.1 µs to look a member up in its Enum, and every
pass compares every request's stage several times."""


@dataclass(slots=True)
class RequestState:
    """What lasts for the whole request; `draft` is replaced in every round."""

    served: ServedRequest
    view: RequestView
    stream: Stream
    stage: Stage = WAITING
    internal: bool = False
    """One of the system's own requests (a ranking prompt): it precedes users' requests and is left
    out of policies' and users' statistics."""
    speculate: bool = True
    max_depth: int | None = None
    """The request's own limit of the draft depth."""
    drafter: str | None = None
    """The only drafter that may draft for it; None: the selection policy chooses."""
    traced: bool = False
    """Each commit carries a trace of its round."""
    may_teach: bool = False
    """A drafter may learn from it."""
    ends: bool = False
    """Finished, failed or cancelled: leaves as soon as no host is working on it."""
    finish: Finish | None = None
    failed: bool = False
    """Ended by an error of its own (RequestFailed)."""
    suspect: bool = False
    """A verifier was lost in a forward with it, and no other one has brought it a token since."""
    drafter_losses: int = 0
    """Consecutive calls with it in which the drafter's process was lost."""
    failed_lanes: set[str] = field(default_factory=set)
    """Lanes that answered Failed for it; they are not used for it again."""
    lacks_features: set[str] = field(default_factory=set)
    """Lanes that need features which are no longer kept."""
    cohort: int = -1
    """The micro-batch that it belongs to; -1: none yet."""
    pending: int = 0
    """Committed tokens that the verifier's KV lacks as far as is known, without the last one, which
    is the root of every verification."""
    prefilled: bool = False
    """Nothing is pending, so that a draft can be verified; `view.prefilled` counts tokens."""
    lacks_kv: bool = False
    """The verifier's last answer was NoRoom: the next order carries no draft."""
    slot_since_s: float = 0.0
    """Its last verdict, or when it last got a batch slot."""
    lane: str | None = None
    """The lane that the selection put it on last."""
    read_ahead: dict[str, int] = field(default_factory=dict)
    """Committed tokens that other lanes have read in idle time since the request was last on
    them."""
    covered: list[bool] = field(default_factory=list)
    """For each output token, whether a lane that always drafts had proposed it."""
    draft: RoundDraft = NO_DRAFT
    """The draft of the present round; meaningful from DRAFTED to VERIFYING."""
    statistics: Statistics = field(default_factory=Statistics)
    name: str = field(init=False)
    """The request's name: as a property it would cost every round 20 µs at 32 requests."""

    def __post_init__(self) -> None:
        self.name = self.served.name

    @property
    def in_flight(self) -> bool:
        return self.stage in (DRAFTING, DRAFTED, VERIFYING)

    @property
    def with_host(self) -> bool:
        return self.stage in (DRAFTING, VERIFYING)

    @property
    def barred(self) -> bool:
        """Drafts on lookups only, because it may be what drafters are lost over."""
        return self.drafter_losses >= _MOST_DRAFTER_LOSSES

    @property
    def draft_room(self) -> int:
        """The largest useful draft depth: each verification adds one token of the target's own."""
        if not self.speculate:
            return 0
        room = self.view.max_tokens - self.view.generated - 1
        return room if self.max_depth is None else min(room, self.max_depth)

    def lacks(self, lane: str) -> int:
        """Committed tokens that the lane's drafter has not seen."""
        return len(self.served.committed.ids) - self.served.known.get(lane, 0)

    def fail(self) -> None:
        """Ends it with RequestFailed as soon as no host is working on it."""
        self.failed = self.ends = True

    def end_stream(self) -> None:
        """Raises for the reader of a request that leaves before its end."""
        if self.failed:
            self.stream.fail(RequestFailed(self.name))
        elif self.finish is None:
            self.stream.fail(Cancelled(f"request {self.name!r} was cancelled"))

    def set_draft(self, draft: RoundDraft) -> None:
        """Hands it to the verifier with this draft; NO_DRAFT decodes it plainly."""
        self.draft = draft
        self.stage = DRAFTED


def first_tokens(requests: Iterable[RequestState]) -> FirstTokens:
    """The first tokens that requests wait for whose prompts are being read."""
    reading = [one for one in requests if not one.prefilled]
    due_s = [
        one.view.arrival_s + one.view.slo.ttft_s
        for one in reading
        if not one.view.generated and one.view.slo.ttft_s is not None
    ]
    if not due_s:
        return NO_FIRST_TOKENS
    return FirstTokens(due_s, sum([one.pending for one in reading]))

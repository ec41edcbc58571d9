"""A request on its way through the coordinator, and the stream that its reader holds."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from engine.errors import SpindleError
from engine.protocol import Commit, Finish
from engine.request import ServedRequest
from policies.flat_trees import NO_TREES, FlatTrees, TreeRef
from policies.request import RequestView, RoundOutcome


class Overloaded(SpindleError):
    """As many requests run and wait as the limits allow; try again later."""


class Cancelled(SpindleError):
    """The request was cancelled before it had finished."""


class RequestFailed(SpindleError):
    """The request fails by itself, and would on any other replica; the others go on. The log says
    why."""

    def __init__(self, request: str) -> None:
        super().__init__(f"request {request!r} failed inside the server")


class Stage(Enum):
    """A request is in one stage at a time; only WAITING and READY ones can be moved."""

    WAITING = auto()
    """Holds no batch slot; its KV may leave the device."""
    READY = auto()
    """Runs; its next round has not begun."""
    DRAFTING = auto()
    DRAFTED = auto()
    """Waits for the verifier, perhaps with an empty tree."""
    VERIFYING = auto()
    GONE = auto()


WAITING, READY, DRAFTING, DRAFTED, VERIFYING, GONE = Stage
"""To look a member up in its Enum takes Python 3.11 a tenth of a microsecond, and every pass asks
every request several times."""


@dataclass(slots=True)
class Statistics:
    """Of one request, told to its client in the end."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_lane: dict[str, int] = field(default_factory=dict)
    """Rounds in which each lane drafted."""
    queue_s: float | None = None
    """From its arrival here until it first ran."""
    ttft_s: float | None = None
    """From its arrival here to the first commit."""

    def add(self, outcome: RoundOutcome, lanes: Sequence[str]) -> None:
        self.rounds += 1
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        by_lane = self.by_lane
        for lane in lanes:
            by_lane[lane] = by_lane.get(lane, 0) + 1


Proposal = tuple[str, FlatTrees, int]
"""A lane, the trees that it drafted in one call, and the number of the request's own among them."""
_NO_DRAFT: TreeRef = (NO_TREES, 0)


@dataclass(slots=True)
class RequestState:
    served: ServedRequest
    view: RequestView
    stream: "Stream"
    stage: Stage = WAITING
    internal: bool = False
    """Of the system itself (a rank prompt): before all others, in nobody's statistics."""
    speculate: bool = True
    max_depth: int | None = None
    """The request's own bound on drafting."""
    drafter: str | None = None
    """The only one that may draft for it; None: whoever the selection chooses."""
    ends: bool = False
    """Finished or cancelled: leaves as soon as no host is working on it."""
    finish: Finish | None = None
    failed: bool = False
    """It fails by itself, whatever serves it."""
    losses: int = 0
    """Verifiers lost over it, one behind the other."""
    without: set[str] = field(default_factory=set)
    """Lanes that fail for it: it goes on without them."""
    cohort: int = -1
    """The micro-batch that it belongs to; -1: none yet."""
    pending: int = 0
    """Committed tokens that the verifier's KV still lacks, as far as is known; the last one always
    runs and does not count."""
    prefilled: bool = False
    """The verifier's KV holds everything but the last token, so a draft can be verified."""
    cramped: bool = False
    """The last order found no room in the KV: the next one goes without a draft."""
    since_s: float = 0.0
    """Its last verdict, or when it began to run."""
    lane: str | None = None
    draft: TreeRef = _NO_DRAFT
    """All drafters' proposals merged, confidences calibrated."""
    nodes: int = 0
    """Of `draft`."""
    depth: int = 0
    """The deepest level of `draft`."""
    proposals: list[Proposal] = field(default_factory=list)
    """From which calibration learns."""
    proposers: list[str] = field(default_factory=list)
    """The lanes of `proposals`."""
    sources: NDArray[np.int64] | None = None
    """Of each node of `draft`: bit i is set where the i-th proposal has it. None: there is one."""
    tried: bool = False
    """Some drafter is asked in this round."""
    asked: str | None = None
    """The lane that drafts in this round; None: none but free ones, at most."""
    covered: list[bool] = field(default_factory=list)
    """Of each token of the output: whether a free lane had proposed it."""
    draft_s: float = 0.0
    caught_up: int = 0
    statistics: Statistics = field(default_factory=Statistics)
    name: str = field(init=False)
    """The request's: a property would cost every round 20 µs at 32 requests."""

    def __post_init__(self) -> None:
        self.name = self.served.name

    @property
    def in_flight(self) -> bool:
        return self.stage in (DRAFTING, DRAFTED, VERIFYING)

    @property
    def with_host(self) -> bool:
        return self.stage in (DRAFTING, VERIFYING)

    @property
    def draft_room(self) -> int:
        """Tokens worth drafting: the target's own token always comes on top."""
        if not self.speculate:
            return 0
        room = self.view.max_tokens - self.view.generated - 1
        return room if self.max_depth is None else min(room, self.max_depth)

    def fail(self) -> None:
        """It leaves as soon as no host is working on it."""
        self.failed = self.ends = True

    def propose_nothing(self) -> None:
        """The next verification decodes this request plainly."""
        self.draft = _NO_DRAFT
        self.nodes = 0
        self.depth = 0
        self.proposals = []
        self.proposers = []
        self.sources = None
        self.tried = False
        self.asked = None
        self.draft_s = 0.0
        self.stage = DRAFTED


class Stream:
    """One request's commits for its reader, once. Leaving it (`close`) cancels the request.

    Iterating it acknowledges each commit as the reader comes for the next one; `relay` leaves
    that to whoever knows what has reached the client.
    """

    def __init__(
        self,
        request: str,
        statistics: Statistics,
        leave: Callable[[], None],
        read: Callable[[], None],
    ) -> None:
        self.request = request
        self.statistics = statistics
        """Complete when the finishing commit has come."""
        self._leave = leave
        self._read = read
        # Bounded by limits.unread_tokens: the coordinator pauses a request that is ahead. With
        # one reader an asyncio.Queue would do no more, and cost a round of 32 requests 4 µs more.
        self._events: deque[Commit | SpindleError] = deque()
        self._some = asyncio.Event()
        self._delivered = 0
        self._acknowledged = 0
        self._done = False

    @property
    def unread_tokens(self) -> int:
        return self._delivered - self._acknowledged

    def deliver(self, commit: Commit) -> None:
        self._delivered = commit.first_index + len(commit.token_ids)
        self._events.append(commit)
        self._some.set()

    def fail(self, error: SpindleError) -> None:
        """Nothing comes behind it."""
        self._events.append(error)
        self._some.set()

    def acknowledge(self, tokens: int) -> None:
        """`tokens` of the output have reached the client."""
        self._acknowledged = max(self._acknowledged, tokens)
        self._read()

    def __aiter__(self) -> AsyncIterator[Commit]:
        return self._commits(acknowledging=True)

    def relay(self) -> AsyncGenerator[Commit, None]:
        """The commits, unacknowledged. The coordinator's own error where it could not go on."""
        return self._commits(acknowledging=False)

    async def _commits(self, acknowledging: bool) -> AsyncGenerator[Commit, None]:
        try:
            while not self._done:
                while not self._events:
                    self._some.clear()
                    await self._some.wait()
                event = self._events.popleft()
                if isinstance(event, SpindleError):
                    self._done = True
                    raise event
                self._done = event.finish is not None
                yield event
                if acknowledging:
                    self.acknowledge(event.first_index + len(event.token_ids))
        finally:
            self.close()

    def close(self) -> None:
        self._done = True
        self._leave()

"""What the reader of a request holds: the stream of its commits, its statistics, its errors."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from engine.errors import SpindleError
from engine.protocol import Commit
from policies.request import RoundOutcome


class Overloaded(SpindleError):
    """As many requests run and wait as the limits allow; try again later."""


class Cancelled(SpindleError):
    """The request was cancelled before it had finished."""


class RequestFailed(SpindleError):
    """This request alone fails, and would on any other replica as well; the log has the reason."""

    def __init__(self, request: str) -> None:
        super().__init__(f"request {request!r} failed inside the server")


@dataclass(slots=True)
class Statistics:
    """The statistics of one request, returned to its client with the last event."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_lane: dict[str, int] = field(default_factory=dict)
    """Rounds in which each lane drafted."""
    queue_s: float | None = None
    """From arrival in this coordinator to the first batch slot."""
    ttft_s: float | None = None
    """From arrival in this coordinator to the first commit."""
    cached: int | None = None
    """Tokens of the prompt that the verifier has not computed but had in its prefix cache, when it
    began with this request."""

    def add(self, outcome: RoundOutcome, lanes: Sequence[str]) -> None:
        """`lanes`: those that proposed something in this round."""
        self.rounds += 1
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        by_lane = self.by_lane
        for lane in lanes:
            by_lane[lane] = by_lane.get(lane, 0) + 1


class Stream:
    """One request's commits for one reader, each once. Closing it cancels the request.

    Iterating acknowledges each commit when the reader requests the next one; with `relay` the
    caller acknowledges what has reached the client.
    """

    def __init__(
        self,
        request: str,
        statistics: Statistics,
        on_close: Callable[[], None],
        on_acknowledge: Callable[[], None],
    ) -> None:
        self.request = request
        self.statistics = statistics
        """Complete when the finishing commit has been delivered."""
        self._on_close = on_close
        self._on_acknowledge = on_acknowledge
        # Bounded by limits.unread_tokens: the coordinator pauses a request that is ahead. With
        # one reader an asyncio.Queue would do no more, and cost a round of 32 requests 4 µs more.
        self._events: deque[Commit | SpindleError] = deque()
        self._has_events = asyncio.Event()
        self._ends = asyncio.Event()
        """Set with the last event."""
        self._delivered = 0
        self._acknowledged = 0
        self._done = False

    @property
    def unread_tokens(self) -> int:
        return self._delivered - self._acknowledged

    def deliver(self, commit: Commit) -> None:
        self._delivered = commit.first_index + len(commit.token_ids)
        self._events.append(commit)
        self._has_events.set()
        if commit.finish is not None:
            self._ends.set()

    def fail(self, error: SpindleError) -> None:
        """Raises `error` for the reader after all commits delivered before."""
        self._events.append(error)
        self._has_events.set()
        self._ends.set()

    def acknowledge(self, tokens: int) -> None:
        """`tokens` of the output have reached the client."""
        self._acknowledged = max(self._acknowledged, tokens)
        self._on_acknowledge()

    def __aiter__(self) -> AsyncIterator[Commit]:
        return self._commits(acknowledging=True)

    def relay(self, pause_s: float = 0.0) -> AsyncGenerator[Commit, None]:
        """The commits, unacknowledged; raises the coordinator's error if it stops. `pause_s`: after
        the first one, all commits of so many seconds are joined into one."""
        return self._commits(acknowledging=False, pause_s=pause_s)

    async def _commits(
        self, acknowledging: bool, pause_s: float = 0.0
    ) -> AsyncGenerator[Commit, None]:
        joins = False
        try:
            while not self._done:
                while not self._events:
                    self._has_events.clear()
                    await self._has_events.wait()
                if joins:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._ends.wait(), pause_s)
                event = self._events.popleft()
                if isinstance(event, SpindleError):
                    self._done = True
                    raise event
                if joins:
                    event = self._with_later(event)
                joins = pause_s > 0
                self._done = event.finish is not None
                yield event
                if acknowledging:
                    self.acknowledge(event.first_index + len(event.token_ids))
        finally:
            self.close()

    def _with_later(self, first: Commit) -> Commit:
        """Joins it with the commits after it that have been delivered; they have no
        log-probabilities."""
        commits = [first]
        while self._events and not isinstance(later := self._events[0], SpindleError):
            commits.append(later)
            self._events.popleft()
        return first._replace(
            token_ids=tuple(chain.from_iterable(commit.token_ids for commit in commits)),
            finish=commits[-1].finish,
        )

    def close(self) -> None:
        self._done = True
        self._on_close()

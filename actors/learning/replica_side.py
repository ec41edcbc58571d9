"""A replica's side of learning: sends the trainer what requests have taught, and has its lanes
serve the versions that the trainer names.

It runs beside the rounds, never within them. While no trainer answers, lanes go on with the
versions that they have.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypedDict

from actors.coordinator.lessons import Lessons, ServedOutcome
from actors.hosts.protocol import HostLost
from engine.learning.lessons import Lesson

_LOG = logging.getLogger("spindle")
_INTERVAL_S = 5.0
"""The pause between two reports, and the time limit of an answer."""


class Numbers(TypedDict):
    """What is known of learning, for metrics."""

    version: int
    """The one that all lanes but the canary serve."""
    tokens: int
    """Answer tokens that were learned from."""
    share: float
    """The share of a processor over the last minute."""
    served: float
    candidate: float
    """Tokens per forward on the last requests, before they were learned from: of the version that
    is served, and of the candidate."""


class Report(TypedDict):
    replica: str
    lanes: Mapping[str, int]
    """The version that each lane serves."""
    refused: Sequence[int]
    """Versions that a lane could not serve."""
    lessons: Sequence[Lesson]
    served: Sequence[ServedOutcome]


class Answer(TypedDict):
    wanted: int
    """Tokens of lessons for which there is room."""
    lanes: Mapping[str, int]
    """The version that each lane should serve; empty while that is not known."""
    versions: Mapping[int, bytes]
    """Those of them that its lanes do not serve yet."""
    numbers: Numbers


ExchangeLessons = Callable[[Report], Awaitable[Answer]]
"""Calls the trainer, wherever it runs now; may raise any exception."""
Show = Callable[[Numbers, int, int], None]
"""Is given the numbers of an answer, and how many lessons were sent and how many were not since the
last one."""


class Renewable(Protocol):
    """The host of a lane that learns."""

    async def renew(self, version: bytes) -> None:
        """Drafts by these learned weights from now on. Raises InvalidVersion, and goes on with the
        old ones."""
        ...


class Learning:
    """Run `run` as a task beside the coordinator."""

    def __init__(
        self,
        replica: str,
        exchange: ExchangeLessons,
        lessons: Lessons,
        hosts: Mapping[str, Renewable],
        show: Show,
    ) -> None:
        """`hosts`: by lane."""
        self._replica = replica
        self._exchange = exchange
        self._lessons = lessons
        self._hosts = hosts
        self._show = show
        self._refused: set[int] = set()
        self._renewals: dict[str, asyncio.Task[None]] = {}
        """By lane the last one: a lane that hangs holds up no other."""
        self._answered = False
        """The trainer has, the last time; at the start it is loading."""

    async def run(self) -> None:
        while True:
            try:
                await self.report()
            except Exception:
                _LOG.exception("lanes keep their versions: the exchange with the trainer fails")
            await asyncio.sleep(_INTERVAL_S)

    async def report(self) -> None:
        lessons, served = self._lessons.take()
        report = Report(
            replica=self._replica,
            lanes=dict(self._lessons.versions),
            refused=sorted(self._refused),
            lessons=lessons,
            served=served,
        )
        self._lessons.wanted = 0  # until it says so again
        try:
            answer = await asyncio.wait_for(self._exchange(report), _INTERVAL_S)
        except Exception as error:
            if self._answered:
                _LOG.warning("the trainer does not answer; lanes go on as they are: %r", error)
            self._answered = False
            return
        self._answered = True
        self._lessons.wanted = answer["wanted"]
        self._show(answer["numbers"], len(lessons), self._lessons.passed_over)
        self._lessons.passed_over = 0
        for lane, version in answer["lanes"].items():
            content = answer["versions"].get(version)
            if version == self._lessons.versions[lane] or content is None:
                continue
            if lane not in self._renewals or self._renewals[lane].done():
                renewal = self._renew(lane, version, content)
                self._renewals[lane] = asyncio.create_task(renewal)
        if under_way := [one for one in self._renewals.values() if not one.done()]:
            await asyncio.wait(under_way, timeout=_INTERVAL_S)

    async def _renew(self, lane: str, version: int, content: bytes) -> None:
        try:
            await self._hosts[lane].renew(content)
        except HostLost:
            return  # its next process is asked again
        except Exception as error:  # also where memory is short: others go on
            if version not in self._refused:
                _LOG.error("version %d of a drafter cannot be served: %r", version, error)
            self._refused.add(version)
        else:
            self._lessons.versions[lane] = version

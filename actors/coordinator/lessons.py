"""What a replica gives to the trainer of its learning drafter: a sample of finished requests with
the features that their verdicts have brought, and how often each version was right as served.

Only requests that may teach count for either. No request waits for it.
"""

import logging
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from actors.coordinator.events import Event, LaneUp
from actors.coordinator.request_state import RequestState
from cluster.config.learning import QUEUED_TOKENS
from engine.learning.lessons import FEWEST_ANSWER_TOKENS, Lesson, LessonMemory
from engine.protocol import Verdict
from policies.learning.judging import Agreement
from policies.learning.rollout import BASE

_LOG = logging.getLogger("spindle")
LEARNER = "\0learner"
"""In place of a lane, among those that read features: it reads all of a request at its end."""
_LONGEST_PROMPT = 2048
_LONGEST_ANSWER = 512
"""Tokens after these are not learned from, which bounds the memory of a training step."""
_MOST_AT_ONCE = 8
"""Requests whose features are kept until they end."""
_MOST_SERVED = 1024
_SENT_AT_ONCE = 1024
"""Answer tokens of one report: features of many hold up the event loop while they are packed."""


class ServedOutcome(NamedTuple):
    version: int
    tenant: str
    first_tokens: Agreement
    """Drafts whose first token was right, and all drafts."""


class Lessons:
    def __init__(
        self, lanes: Collection[str], most_tokens: int, layers: tuple[int, ...] = ()
    ) -> None:
        """`lanes`: of the drafter that learns; without any nothing is taken. `most_tokens`: of a
        request, whose features are kept (limits.feature_tokens). `layers`: which it reads."""
        self.versions = dict.fromkeys(lanes, BASE)
        """What each lane serves."""
        self.layers = layers
        self.wanted = 0
        """Tokens for which the trainer has room."""
        self.passed_over = 0
        """Requests that might have taught and were not sampled, or dropped."""
        self._most = most_tokens
        self._collecting: set[str] = set()
        self._queue = LessonMemory(QUEUED_TOKENS)
        self._drafts: dict[str, Counter[tuple[int, bool]]] = {}
        """By request, the drafts of each version, right at their first token or not."""
        self._served: deque[ServedOutcome] = deque(maxlen=_MOST_SERVED)

    def begins(self, request: RequestState) -> None:
        """Decides whether the features of a new request are kept."""
        if not self.versions or not request.may_teach or not request.draft_room:
            return
        self._drafts[request.name] = Counter()
        if (
            request.served.prompt_len <= min(_LONGEST_PROMPT, self._most // 2)
            and len(self._collecting) < _MOST_AT_ONCE
            and self._queue.tokens < self.wanted
        ):
            self._collecting.add(request.name)
        else:
            self.passed_over += 1

    def __contains__(self, request: str) -> bool:
        """Whether its features are kept."""
        return request in self._collecting

    def drafted(self, requests: Sequence[RequestState], answers: Sequence[Any]) -> None:
        """Compares first tokens of these lanes' drafts with what verdicts have committed, whether
        they were verified or not."""
        if not self._drafts:
            return
        for request, answer in zip(requests, answers, strict=True):
            drafts = self._drafts.get(request.name)
            if drafts is None or not isinstance(answer, Verdict) or not answer.tokens:
                continue
            for lane, trees, place in request.draft.proposals:
                begin, end = trees.starts[place], trees.starts[place + 1]
                if lane in self.versions and begin < end:
                    right = bool(trees.tokens[begin] == answer.tokens[0])
                    drafts[self.versions[lane], right] += 1

    def ends(self, request: RequestState) -> None:
        for version in {version for version, _ in self._drafts.get(request.name, ())}:
            right, wrong = (self._drafts[request.name][version, which] for which in (True, False))
            outcome = ServedOutcome(version, request.view.tenant, Agreement(right, right + wrong))
            self._served.append(outcome)
        self._drafts.pop(request.name, None)
        if request.name not in self._collecting:
            return
        self._collecting.remove(request.name)
        kept, served = request.served.features, request.served
        if request.finish is None or kept is None or kept.first > 0 or not kept.end:
            self.passed_over += request.finish is not None
            return
        end = min(len(served.committed), served.prompt_len + _LONGEST_ANSWER)
        features = kept.read(0, min(kept.end, end), self.layers).rows
        tokens = tuple(served.committed.ids[:end])
        lesson = Lesson(tokens, served.prompt_len, features, request.view.tenant)
        if lesson.answered >= FEWEST_ANSWER_TOKENS:
            self.passed_over += self._queue.add(lesson)

    def observe(self, event: Event) -> None:
        if isinstance(event, LaneUp) and event.lane in self.versions:
            self.versions[event.lane] = BASE  # its process is new

    def take(self) -> tuple[list[Lesson], list[ServedOutcome]]:
        """Those of the next report, the oldest lessons first."""
        lessons, served = self._queue.take(_SENT_AT_ONCE), [*self._served]
        self._served.clear()
        return lessons, served

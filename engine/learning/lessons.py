"""What a head learns from: finished requests with the hidden states that their verifications have
computed. And the bounded memories of them, in which no tenant can displace another."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from numpy.typing import NDArray

from engine.scopes import Holdings

FEWEST_ANSWER_TOKENS = 3
"""Shorter answers have no row to learn from: the first token comes from the prompt's forward."""


class Lesson(NamedTuple):
    tokens: Sequence[int]
    """Prompt and answer."""
    prompt_len: int
    features: NDArray[Any]
    """By position, from the first one on, as in Features.rows; the last positions may be absent."""
    tenant: str = ""

    @property
    def first_row(self) -> int:
        """Row j has the features of position j and token j + 1, and predicts token j + 2: this one
        predicts the first token of the answer."""
        return max(self.prompt_len - 2, 0)

    @property
    def rows(self) -> int:
        """All rows that can be judged."""
        return min(len(self.features), len(self.tokens) - 2)

    @property
    def answered(self) -> int:
        """Tokens that are learned from."""
        return max(self.rows - self.first_row, 0)


@dataclass(slots=True)
class LessonMemory:
    """At most so many tokens of lessons. The tenant that holds most gives room, its oldest or, at
    `random`, any of its lessons first."""

    most_tokens: int
    random: Random | None = None
    _by_tenant: dict[str, deque[Lesson]] = field(default_factory=dict)
    _holdings: Holdings = field(default_factory=Holdings)

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def tokens(self) -> int:
        return sum(self._holdings.held.values())

    @property
    def answered(self) -> int:
        return sum(lesson.answered for own in self._by_tenant.values() for lesson in own)

    def add(self, lesson: Lesson) -> int:
        """Returns how many lessons were dropped for it."""
        dropped = 0
        self._by_tenant.setdefault(lesson.tenant, deque()).append(lesson)
        self._holdings.add(lesson.tenant, len(lesson.tokens))
        while self.tokens > self.most_tokens:
            self._drop(self._holdings.gives_room(self._by_tenant))
            dropped += 1
        return dropped

    def take(self, answer_tokens: int) -> list[Lesson]:
        """Removes lessons with about so many answer tokens, the oldest, tenants in turn."""
        taken: list[Lesson] = []
        while self._by_tenant and sum(one.answered for one in taken) < answer_tokens:
            tenant = next(iter(self._by_tenant))
            own = self._by_tenant.pop(tenant)
            taken.append(own.popleft())
            self._holdings.add(tenant, -len(taken[-1].tokens))
            if own:
                self._by_tenant[tenant] = own  # now the last in turn
        return taken

    def sample(self, answer_tokens: int) -> list[Lesson]:
        """Lessons with about so many answer tokens, each tenant as probable as any other."""
        assert self.random is not None
        chosen: list[Lesson] = []
        while self._by_tenant and sum(one.answered for one in chosen) < answer_tokens:
            own = self._by_tenant[self.random.choice([*self._by_tenant])]
            chosen.append(own[self.random.randrange(len(own))])
        return chosen

    def _drop(self, tenant: str) -> None:
        own = self._by_tenant[tenant]
        if self.random is not None:
            own.rotate(-self.random.randrange(len(own)))
        self._holdings.add(tenant, -len(own.popleft().tokens))
        if not own:
            del self._by_tenant[tenant]

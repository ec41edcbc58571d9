"""Whether one version of a drafter is better than another, beyond noise, by requests that neither
has learned from.

Versions are compared on the same requests (pairs), and by what they achieve as served. Tenants
count by themselves as well: a version that is worse for one of them is not better.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

BEYOND_NOISE = 2.0
"""Standard errors."""
WORTH_A_VERSION = 1.01
"""Times the tokens per forward of the served version."""
ENOUGH = 32
"""The fewest requests that a judgement rests on; of one tenant, when it is looked at by itself."""


class Agreement(NamedTuple):
    """How far a drafter agrees with the answer of one request."""

    tokens: int
    forwards: int
    """That it takes to commit the tokens; as served, the drafts whose first token was right in
    place of tokens, and all drafts here."""


def ratio(agreements: Iterable[Agreement]) -> float:
    tokens, forwards = (sum(column) for column in zip((0, 0), *agreements, strict=True))
    return tokens / max(forwards, 1)


def gain(pairs: Sequence[tuple[Agreement, Agreement]]) -> float:
    """By how many standard errors the second of each pair takes fewer forwards."""
    saved = [one.forwards - other.forwards for one, other in pairs]
    return _standard_errors(saved)


def served_gain(before: Sequence[Agreement], after: Sequence[Agreement]) -> float:
    """By how many standard errors the ratio of `after`, other requests, is higher."""
    difference = ratio(after) - ratio(before)
    error = sqrt(_variance(before) + _variance(after))
    return difference / error if error else _sign(difference)


def _standard_errors(values: Sequence[float]) -> float:
    count, total = len(values), sum(values)
    spread = sum((value - total / count) ** 2 for value in values) if count else 0.0
    if count < 2 or not spread:
        return _sign(total) if count >= 2 else 0.0
    return total / sqrt(spread * count / (count - 1))


def _variance(agreements: Sequence[Agreement]) -> float:
    """The variance of the ratio; requests are independent, the drafts of one are not."""
    count, forwards = len(agreements), sum(one.forwards for one in agreements)
    if count < 2 or not forwards:
        return inf
    mean = ratio(agreements)
    spread = sum((one.tokens - mean * one.forwards) ** 2 for one in agreements)
    return spread * count / (count - 1) / forwards**2


def _sign(value: float) -> float:
    return inf if value > 0 else -inf if value < 0 else 0.0


@dataclass(slots=True)
class Window:
    """The last judgements of a pair of versions, as many of each tenant as of any other."""

    most: int
    """The number of judgements that are kept of one tenant."""
    _by_tenant: dict[str, deque[tuple[Agreement, Agreement]]] = field(default_factory=dict)

    def add(self, tenant: str, served: Agreement, candidate: Agreement) -> None:
        own = self._by_tenant.setdefault(tenant, deque(maxlen=self.most))
        own.append((served, candidate))

    def clear(self) -> None:
        self._by_tenant.clear()

    @property
    def pairs(self) -> list[tuple[Agreement, Agreement]]:
        return [pair for own in self._by_tenant.values() for pair in own]

    @property
    def better(self) -> bool:
        """Whether the candidate is, together and for no tenant worse."""
        served, candidate = (ratio(pair[which] for pair in self.pairs) for which in (0, 1))
        if len(self.pairs) < ENOUGH or candidate < WORTH_A_VERSION * served:
            return False
        if gain(self.pairs) < BEYOND_NOISE:
            return False
        return not any(
            len(own) >= ENOUGH and gain(own) < -BEYOND_NOISE for own in self._by_tenant.values()
        )

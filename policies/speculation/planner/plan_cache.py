"""A plan that is followed for some rounds: to make one takes as long as the lookups themselves.

Only lookups may draft by it, for they cost nothing: what little changes meanwhile, `select` weighs
in every round. And nobody may have an SLO, whose needs change with every round.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from policies.protocols import DraftPlan, LaneBatch
from policies.request import RequestView
from policies.speculation.forest import Ints

_ROUNDS = 3
"""In which it is followed once more."""


@dataclass(slots=True)
class CachedPlan:
    batches: Sequence[tuple[str | None, Sequence[RequestView]]]
    """That it answers."""
    plans: list[DraftPlan]
    awake: Collection[str]
    """The lanes that were thought about."""
    rows: Ints
    """Of everybody."""
    asked: Mapping[str, Sequence[int]]
    """By lane, the rows of those who draft there."""
    plain_s: float
    """What the round takes if nobody drafts."""
    left: int = _ROUNDS

    def answers(self, batches: Sequence[LaneBatch], awake: Sequence[LaneBatch]) -> bool:
        """The same requests, and no lane that has not been thought about."""
        return (
            self.left > 0
            and all([batch.lane in self.awake for batch in awake])
            and keys_of(batches) == self.batches
        )


def keys_of(batches: Sequence[LaneBatch]) -> list[tuple[str | None, Sequence[RequestView]]]:
    return [(batch.lane, batch.requests) for batch in batches]

"""Drafts and what was then committed, kept until calibrations have enough to learn from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from actors.coordinator.request_state import Proposal
from policies.estimates.calibration import Calibration
from policies.flat_trees import FlatTrees, concatenate_trees

_TREES_PER_LESSON = 64
"""Calibrations learn from at least so many trees at once: one at a time costs several times as
much."""
_UNKNOWN: Sequence[int] = ()
"""Behind a tree that was not verified, or not yet: nothing of it is judged."""


@dataclass(slots=True)
class _LaneBuffer:
    """Of one lane, call by call, as its trees came: to pick them out one by one costs more than to
    learn from them."""

    trees: list[FlatTrees] = field(default_factory=list)
    said: list[list[Sequence[int]]] = field(default_factory=list)
    """What was committed behind each tree of each call."""
    told: int = 0
    """Trees of which it is known."""

    def behind(self, trees: FlatTrees) -> list[Sequence[int]]:
        """One place for each tree of this call."""
        for number, seen in enumerate(self.trees):
            if seen is trees:
                return self.said[number]
        self.trees.append(trees)
        self.said.append([_UNKNOWN] * (len(trees.starts) - 1))
        return self.said[-1]


class CalibrationBuffer:
    """`calibrations`: by lane."""

    def __init__(self, calibrations: Mapping[str, Calibration]) -> None:
        self._calibrations = calibrations
        self._lessons = {lane: _LaneBuffer() for lane in calibrations}

    def learn(self, judged: Sequence[tuple[Proposal, Sequence[int]]]) -> None:
        """Proposals and the tokens that were then committed: which nodes were right."""
        places: dict[int, list[Sequence[int]]] = {}
        for (lane, trees, place), committed in judged:
            said = places.get(id(trees))
            if said is None:
                said = places[id(trees)] = self._lessons[lane].behind(trees)
            said[place] = committed
        for lane, trees_told in Counter([lane for (lane, _, _), _ in judged]).items():
            lesson = self._lessons[lane]
            lesson.told += trees_told
            if lesson.told >= _TREES_PER_LESSON:
                behind = [*chain.from_iterable(lesson.said)]
                self._calibrations[lane].observe(concatenate_trees(lesson.trees), behind)
                self._lessons[lane] = _LaneBuffer()

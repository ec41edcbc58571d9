"""Drafts and the tokens committed after them, kept until a batch is large enough to learn from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from actors.coordinator.round_draft import Proposal
from policies.estimates.calibration import Calibration
from policies.flat_trees import FlatTrees, concatenate_trees

_TREES_PER_UPDATE = 64
"""The fewest trees from which a calibration learns at once: single ones cost several times as
much."""
_UNKNOWN: Sequence[int] = ()
"""The committed tokens of a tree that was not verified, or not yet: no node of it counts."""


@dataclass(slots=True)
class _LaneBuffer:
    """The trees of one lane, by draft call as they came: to select single ones costs more than to
    learn from all."""

    trees: list[FlatTrees] = field(default_factory=list)
    committed: list[list[Sequence[int]]] = field(default_factory=list)
    """For each call, the tokens committed after each of its trees."""
    verified: int = 0
    """Trees for which they are known."""

    def committed_after(self, trees: FlatTrees) -> list[Sequence[int]]:
        """The entry of this call, which the caller fills in."""
        for number, known in enumerate(self.trees):
            if known is trees:
                return self.committed[number]
        self.trees.append(trees)
        self.committed.append([_UNKNOWN] * (len(trees.starts) - 1))
        return self.committed[-1]


class CalibrationBuffer:
    def __init__(self, calibrations: Mapping[str, Calibration]) -> None:
        """`calibrations`: by lane."""
        self._calibrations = calibrations
        self._buffers = {lane: _LaneBuffer() for lane in calibrations}

    def learn(self, verified: Sequence[tuple[Proposal, Sequence[int]]]) -> None:
        """`verified`: proposals and the tokens committed after each, which say which of its nodes
        were right."""
        by_call: dict[int, list[Sequence[int]]] = {}
        for (lane, trees, place), tokens in verified:
            committed = by_call.get(id(trees))
            if committed is None:
                committed = by_call[id(trees)] = self._buffers[lane].committed_after(trees)
            committed[place] = tokens
        for lane, count in Counter([lane for (lane, _, _), _ in verified]).items():
            buffer = self._buffers[lane]
            buffer.verified += count
            if buffer.verified >= _TREES_PER_UPDATE:
                committed = [*chain.from_iterable(buffer.committed)]
                self._calibrations[lane].observe(concatenate_trees(buffer.trees), committed)
                self._buffers[lane] = _LaneBuffer()

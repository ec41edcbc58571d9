"""Counts of verified draft tokens by the drafter that proposed them, and by depth."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.events import VerifiedTrees
from deployments.metrics import POSITIONS
from policies.tree_counts import count_nodes

_NO_INTS = np.zeros(0, np.int64)
_NOT_VERIFIED = -1


class NodeCounts:
    def __init__(self, drafters: Mapping[str, str]) -> None:
        """`drafters`: drafter name by lane."""
        self.names = list(dict.fromkeys(drafters.values()))
        self.column = {lane: self.names.index(drafter) for lane, drafter in drafters.items()}

    def zeros(self) -> NDArray[np.float64]:
        """[drafter, depth - 1, column of policies/tree_counts.py]."""
        return np.zeros((len(self.names), len(POSITIONS), 3))

    def add(self, drafts: VerifiedTrees, counts: NDArray[np.float64]) -> None:
        column, most = self.column, max([1, *map(len, drafts.proposers)])
        drafters = np.zeros((len(drafts.proposers), most), np.int64)
        for tree, lanes in enumerate(drafts.proposers):
            for bit, lane in enumerate(lanes):
                drafters[tree, bit] = column[lane]
        nodes: list[int] = []
        ends: list[int] = []
        for accepted in drafts.accepted:
            if accepted is None:
                ends.append(_NOT_VERIFIED)
            else:
                nodes += accepted
                ends.append(len(nodes))
        count_nodes(
            drafts.trees,
            drafters,
            _NO_INTS if drafts.sources is None else drafts.sources,
            np.array(nodes, np.int64),
            np.array(ends, np.int64),
            counts,
        )

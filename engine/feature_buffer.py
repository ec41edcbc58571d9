"""The features of one request's committed positions that some drafter has not received yet.

A head that has read n committed tokens has the features of the positions before n - 1: it reads
each token together with the features of the position before it. So what a lane lacks follows from
the number of tokens that it has, and this is a window over consecutive positions.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.protocol import Features


def lacks_from(known: int) -> int:
    """The first position whose features a drafter with `known` committed tokens lacks."""
    return max(known - 1, 0)


class FeatureBuffer:
    def __init__(self, layers: Sequence[int], most_tokens: int) -> None:
        """`layers`: whose hidden states are side by side in each row. Beyond `most_tokens`
        positions the oldest are dropped."""
        self._layers = tuple(layers)
        self._most = most_tokens
        self._pieces: deque[Features] = deque()
        """Consecutive, none of them empty; the first one may begin with dropped positions."""
        self.first = 0
        """The first position that is kept, and the one after the last."""
        self.end = 0

    def add(self, new: Features) -> None:
        """What a verdict has brought, in place of what was kept of these positions and of later
        ones: a verifier that computes a request again begins with its first positions."""
        if not self.first <= new.first <= self.end:  # computed again, or a gap
            self._pieces.clear()
            self.first = new.first
        while self._pieces and self._pieces[-1].first >= new.first:
            self._pieces.pop()
        if self._pieces:
            last = self._pieces.pop()
            self._pieces.append(Features(last.first, last.rows[: new.first - last.first]))
        self.end = new.first + len(new.rows)
        if len(new.rows):
            self._pieces.append(new)
        self.drop_before(self.end - self._most)

    def drop_before(self, position: int) -> None:
        """Drops earlier positions, which no drafter needs."""
        self.first = max(self.first, min(position, self.end))
        while self._pieces and self._pieces[0].first + len(self._pieces[0].rows) <= self.first:
            self._pieces.popleft()
        if not self._pieces:
            return
        piece = self._pieces[0]
        dropped = self.first - piece.first
        if 2 * dropped > len(piece.rows):
            # Copied, so that what was dropped is not kept alive; not sooner, since a prompt's piece
            # that is read bit by bit would be copied each time.
            self._pieces[0] = Features(self.first, piece.rows[dropped:].copy())

    def read(self, first: int, end: int, layers: Sequence[int]) -> Features:
        """Positions that are kept, `first` to `end` (exclusive), with the columns of these layers
        only."""
        rows = [
            piece.rows[max(first - piece.first, 0) : max(end - piece.first, 0)]
            for piece in self._pieces
        ]
        rows = [some for some in rows if len(some)]
        if not rows:
            return Features(first, np.empty((0, 0), np.float32))
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return Features(first, self._columns(joined, layers))

    def _columns(self, rows: NDArray[Any], layers: Sequence[int]) -> NDArray[Any]:
        if tuple(layers) == self._layers:
            return rows
        parts = np.split(rows, len(self._layers), axis=1)
        return np.concatenate([parts[self._layers.index(layer)] for layer in layers], axis=1)

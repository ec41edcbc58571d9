"""Requests as rows of arrays, so that what is known of a batch is read at once."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST = 8
"""Rows of an array that has just been made."""


class Rows:
    """A row number for each request; that of one which has left is given out again."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """Rows that were ever given out."""
        return len(self._row) + len(self._free)

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def get(self, request: str) -> int | None:
        return self._row.get(request)

    def known(self, requests: Sequence[str]) -> Ints | None:
        """None where one of them has no row yet."""
        row = self._row
        try:
            return np.array([row[name] for name in requests], np.int64)
        except KeyError:
            return None

    def of(self, requests: Sequence[str]) -> Ints:
        """New requests get a row."""
        known = self.known(requests)
        if known is not None:
            return known
        for name in requests:
            if name not in self._row:
                self._row[name] = self._free.pop() if self._free else len(self)
        return self.of(requests)

    def drop(self, request: str) -> int | None:
        """The row that has fallen free, for its owner to clear."""
        row = self._row.pop(request, None)
        if row is not None:
            self._free.append(row)
        return row


def with_rows(array: Floats, rows: int) -> Floats:
    """The array with at least so many rows, new ones all zero."""
    if len(array) >= rows:
        return array
    larger = np.zeros((max(rows, 2 * len(array), _FIRST), *array.shape[1:]))
    larger[: len(array)] = array
    return larger

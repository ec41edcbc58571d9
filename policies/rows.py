"""Requests as rows of arrays, so that the state of a whole batch is read by one index."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Number = TypeVar("Number", np.float64, np.int64)

_MIN_ROWS = 8
"""The least number of rows to allocate."""


class Rows:
    """A row number for each request; those of requests that have left are reused."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """Rows that have ever been in use."""
        return len(self._row) + len(self._free)

    def get(self, request: str) -> int | None:
        return self._row.get(request)

    def of(self, requests: Sequence[str]) -> Ints:
        """The requests' rows; new requests get one."""
        row = self._row
        for name in requests:
            if name not in row:
                row[name] = self._free.pop() if self._free else len(self)
        return np.array([row[name] for name in requests], np.int64)

    def drop(self, request: str) -> int | None:
        """Frees the request's row and returns it, for the caller to clear."""
        row = self._row.pop(request, None)
        if row is not None:
            self._free.append(row)
        return row


def with_rows(array: NDArray[Number], rows: int) -> NDArray[Number]:
    """The array with at least `rows` rows; new ones are zero."""
    if len(array) >= rows:
        return array
    larger = np.zeros((max(rows, 2 * len(array), _MIN_ROWS), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger

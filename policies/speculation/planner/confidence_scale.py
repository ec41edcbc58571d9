"""How many tokens a request accepts for each that its calibrated confidences promise.

Calibration pools all requests of a drafter; this is what one request differs by.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints

_PRIOR = 8.0
"""Accepted tokens that count for the confidences being right."""
_FADE = 0.98
"""Per round with drafts: the last fifty count."""


class Promises(NamedTuple):
    """By row, as compiled code takes them."""

    promised: Floats
    accepted: Floats
    open: Floats
    """Tokens that the drafts under verification promise."""


class ConfidenceScale:
    """A row for each request."""

    def __init__(self) -> None:
        self.promises = Promises(np.zeros(0), np.zeros(0), np.zeros(0))

    def reserve(self, rows: int) -> None:
        self.promises = Promises(*(with_rows(column, rows) for column in self.promises))

    def forget(self, row: int) -> None:
        for column in self.promises:
            column[row] = 0.0

    def observe(self, rows: Ints, accepted: Floats) -> None:
        _observe(rows, accepted, self.promises)


@njit(cache=True)
def _observe(rows: Ints, accepted: Floats, promises: Promises) -> None:
    for number, row in enumerate(rows):
        if promises.open[row] > 0.0:
            promises.promised[row] = _FADE * promises.promised[row] + promises.open[row]
            promises.accepted[row] = _FADE * promises.accepted[row] + accepted[number]
            promises.open[row] = 0.0


@njit(cache=True)
def scales_of(rows: Ints, promises: Promises) -> Floats:
    scales = np.empty(len(rows))
    for number, row in enumerate(rows):
        accepted, promised = promises.accepted[row] + _PRIOR, promises.promised[row] + _PRIOR
        scales[number] = min(max(accepted / promised, 0.25), 1.25)
    return scales

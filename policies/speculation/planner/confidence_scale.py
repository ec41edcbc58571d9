"""Per request, the ratio of accepted tokens to those that its calibrated confidences predict.

Calibration pools all requests of a drafter; this ratio captures how one request differs.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.rows import with_rows
from policies.speculation.forest import Floats, Ints

_PRIOR = 8.0
"""Weight of the prior that confidences are right, in accepted tokens."""
_FADE = 0.98
"""Decay per round with drafts, so that about the last fifty rounds count."""


class Promises(NamedTuple):
    """Arrays with a row for each request, for compiled code."""

    promised: Floats
    accepted: Floats
    open: Floats
    """Expected accepted tokens of the drafts that are being verified."""


class ConfidenceScale:
    """The ratios of all requests, with a row for each."""

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

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


class ScaleTables(NamedTuple):
    """Arrays with a row for each request, for compiled code."""

    predicted: Floats
    accepted: Floats
    open: Floats
    """Expected accepted tokens of the drafts that are being verified."""


class ConfidenceScale:
    """The ratios of all requests, with a row for each."""

    def __init__(self) -> None:
        self.tables = ScaleTables(np.zeros(0), np.zeros(0), np.zeros(0))

    def reserve(self, rows: int) -> None:
        self.tables = ScaleTables(*(with_rows(column, rows) for column in self.tables))

    def forget(self, row: int) -> None:
        for column in self.tables:
            column[row] = 0.0

    def observe(self, rows: Ints, accepted: Floats) -> None:
        _observe(rows, accepted, self.tables)


@njit(cache=True)
def _observe(rows: Ints, accepted: Floats, tables: ScaleTables) -> None:
    for number, row in enumerate(rows):
        if tables.open[row] > 0.0:
            tables.predicted[row] = _FADE * tables.predicted[row] + tables.open[row]
            tables.accepted[row] = _FADE * tables.accepted[row] + accepted[number]
            tables.open[row] = 0.0


@njit(cache=True)
def scales_of(rows: Ints, tables: ScaleTables) -> Floats:
    scales = np.empty(len(rows))
    for number, row in enumerate(rows):
        accepted, predicted = tables.accepted[row] + _PRIOR, tables.predicted[row] + _PRIOR
        scales[number] = min(max(accepted / predicted, 0.25), 1.25)
    return scales

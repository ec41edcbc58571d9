"""A fitted cost model that follows what forwards really take: other load, heat, a shared machine.

The fit's shape stays (its knee and the slopes' ratio there); three scales are learned, of its fixed
part, of context, and of tokens, for a forward that is slower for its tokens is not slower for
everything. Where calls of several forwards are seen, what each takes besides them is learned as
well: else a call of one step would make steps look dear that come cheap in a longer one. All of it
stays within bounds, so no run of odd observations can make a forward cost nothing, or forever.
"""

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.cost import Bent, CostModel

Floats = NDArray[np.float64]

_ODD = 2.0
"""An observation this many times as long as predicted, or as short, is a pause or a slip of the
clock: it counts as no more."""
_SPREAD = 0.5
"""By about so much a scale may differ from the fit's. Observations that scatter by σ around the
model then weigh 1 / σ² each, the fit itself 1 / spread²: where they scatter much, a part that is a
small share of most forwards, and shows itself only in how they differ, is not read off noise."""
_SCATTER = 0.07
"""Of observations, before any were seen."""
_CALL_SPREAD = 0.25
"""Of the longest call."""
_SCATTER_MEMORY = 0.02
_MOST_PRIOR = 1.0
_SWEEPS = 200
_SETTLED = 1e-9
_PARTS = 4
"""Fixed, context, tokens; and the call's own."""


@dataclass(frozen=True, slots=True)
class RefinementParams:
    furthest: float = 4.0
    """The scales stay between its inverse and itself."""
    memory: float = 256.0
    """Observations that count, the latest most."""
    longest_call: float = 0.0
    """What a call may take besides its forwards, in forwards of one token. 0: no more than they."""


class RefinedCost:
    """A CostModel: Σ sᵢ·partᵢ, the parts of T(context, tokens) as it was fitted.

    s minimises the squared errors of the observations, each relative to its fitted time and older
    ones fading, plus prior·Σ (sᵢ - 1)², within [1/furthest, furthest]³. A call of n forwards takes
    n times that, and s₄ forwards of one token, 0 ≤ s₄ ≤ longest_call: what the fit says of a
    forward is trusted rather than that calls cost nothing.
    """

    def __init__(self, fitted: CostModel, params: RefinementParams | None = None) -> None:
        params = params or RefinementParams()
        self._shape = fitted.bent
        self._call_unit_s = fitted.predict(0, 1)
        furthest, longest_call = params.furthest, params.longest_call
        self._reach = _Reach(furthest, longest_call, 1.0 - 1.0 / params.memory)
        # By how much each may differ from there: a call by much more than a scale.
        spread = np.array([_SPREAD] * 3 + [max(_SPREAD, _CALL_SPREAD * longest_call)])
        self._box = np.array(
            [
                (1.0, 1.0, 1.0, 0.0),
                [1.0 / furthest] * 3 + [0.0],
                [furthest] * 3 + [longest_call],
                (_SPREAD / spread) ** 2,
            ]
        )
        self._scales = self._box[_CENTRE].copy()
        self._normal = np.zeros((_PARTS + 1, _PARTS))
        """The normal equations of the scales, without the prior: squares, and products below."""
        self._variance = _SCATTER**2
        self.bent = self._shape

    @property
    def prior(self) -> float:
        """Observations that the fit itself is worth, each of one part alone."""
        return _prior.py_func(self._variance)

    @property
    def call_s(self) -> float:
        """Of each call, besides its forwards."""
        return float(self._scales[3]) * self._call_unit_s

    def predict(self, context: float, tokens: float) -> float:
        return self.bent.predict(context, tokens)

    def observe(self, context: float, tokens: float, seconds: float, forwards: int = 1) -> None:
        """One call of so many equal forwards. What lies beyond the bounds counts as lying on
        them."""
        if not isfinite(seconds):
            raise ValueError(f"a forward took {seconds} seconds")
        fitted = self._shape
        one_s = fitted.predict(context, tokens)
        if one_s <= 0.0:
            return  # nothing to scale
        expected = forwards * one_s
        of_fixed, of_context = fitted.delta / one_s, fitted.alpha * context / one_s
        self._variance = _learn(
            (of_fixed, of_context, 1.0 - of_fixed - of_context, self._call_unit_s / expected),
            seconds / expected,
            self._reach,
            self._box,
            self._normal,
            self._scales,
            self._variance,
        )
        fixed, per_context, per_token, _ = self._scales.tolist()
        self.bent = Bent(
            per_context * fitted.alpha,
            per_token * fitted.gamma,
            fixed * fitted.delta,
            fitted.knee,
            per_token * fitted.gamma_more,
            fitted.step_from,
            fitted.step_to,
        )


class _Reach(NamedTuple):
    furthest: float
    longest_call: float
    keep: float
    """Of what was seen before, per observation."""


_CENTRE, _LOWEST, _HIGHEST, _CERTAIN = range(4)
"""Rows of what is told of each scale: where it is without observations, its bounds, and how much
more certain that is than of a forward's parts."""


@njit(cache=True)
def _prior(variance: float) -> float:
    return min(variance / _SPREAD**2, _MOST_PRIOR)


@njit(cache=True)
def _learn(
    parts: tuple[float, float, float, float],
    slower: float,
    reach: _Reach,
    box: Floats,
    normal: Floats,
    scales: Floats,
    variance: float,
) -> float:
    """Takes one observation: a call so many times `slower` than its forwards as they were fitted,
    of which `parts` are each scale's. Changes `normal` and `scales`, and returns the variance."""
    usual = 0.0
    for part in range(_PARTS):
        usual += parts[part] * scales[part]
    slower = min(max(slower, usual / _ODD), usual * _ODD)
    most = reach.furthest + reach.longest_call * parts[3]
    slower = min(max(slower, 1.0 / reach.furthest), most)
    error = (slower - usual) / usual
    variance += _SCATTER_MEMORY * (error * error - variance)
    squares, products = normal[:_PARTS], normal[_PARTS]
    for row in range(_PARTS):
        for column in range(_PARTS):
            squares[row, column] = reach.keep * squares[row, column] + parts[row] * parts[column]
        products[row] = reach.keep * products[row] + parts[row] * slower
    # Least squares in a box, one scale after the other from where they are: a few sweeps.
    for _ in range(_SWEEPS):
        moved = 0.0
        for row in range(_PARTS):
            prior = _prior(variance) * box[_CERTAIN, row]
            # As a loop: the way into BLAS takes longer than a whole sweep.
            others = 0.0
            for column in range(_PARTS):
                others += squares[row, column] * scales[column]
            others -= squares[row, row] * scales[row]
            best = prior * box[_CENTRE, row] + products[row] - others
            best /= prior + squares[row, row]
            best = min(max(best, box[_LOWEST, row]), box[_HIGHEST, row])
            moved = max(moved, abs(best - scales[row]))
            scales[row] = best
        if moved < _SETTLED:
            break
    return variance

"""A fitted cost model that follows what forwards really take: other load, heat, a shared machine.

The fit's shape stays (its knee and the slopes' ratio there); three scales are learned, of its fixed
part, of context, and of tokens, for a forward that is slower for its tokens is not slower for
everything. Where calls of several forwards are seen, what each takes besides them is learned as
well: else a call of one step would make steps look dear that come cheap in a longer one. All of it
stays within bounds, so no run of odd observations can make a forward cost nothing, or forever.
"""

from dataclasses import dataclass
from math import isfinite

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
        self._fitted = fitted
        self._params = params or RefinementParams()
        self._shape = fitted.bent
        self._call_unit_s = fitted.predict(0, 1)
        furthest = self._params.furthest
        self._centre = np.array([1.0, 1.0, 1.0, 0.0])
        # By how much each may differ from there: a call by much more than a scale.
        spread = np.array([_SPREAD] * 3 + [max(_SPREAD, _CALL_SPREAD * self._params.longest_call)])
        self._certain = (_SPREAD / spread) ** 2
        self._lowest = np.array([1.0 / furthest] * 3 + [0.0])
        self._highest = np.array([furthest] * 3 + [self._params.longest_call])
        self._scales = self._centre.copy()
        # The normal equations of the scales, without the prior.
        self._squares = np.zeros((_PARTS, _PARTS))
        self._products = np.zeros(_PARTS)
        self._variance = _SCATTER**2
        self.bent = self._shape

    @property
    def prior(self) -> float:
        """Observations that the fit itself is worth, each of one part alone."""
        return min(self._variance / _SPREAD**2, _MOST_PRIOR)

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
        fitted, params = self._shape, self._params
        one_s = self._fitted.predict(context, tokens)
        if one_s <= 0.0:
            return  # nothing to scale
        expected = forwards * one_s
        of_call = self._call_unit_s / expected
        usual = (forwards * self.predict(context, tokens) + self.call_s) / expected
        slower = min(max(seconds / expected, usual / _ODD), usual * _ODD)
        most = params.furthest + params.longest_call * of_call
        slower = min(max(slower, 1.0 / params.furthest), most)
        error = (slower - usual) / usual
        self._variance += _SCATTER_MEMORY * (error * error - self._variance)
        of_fixed, of_context = fitted.delta / one_s, fitted.alpha * context / one_s
        _learn(
            self._squares,
            self._products,
            self._scales,
            (of_fixed, of_context, 1.0 - of_fixed - of_context, of_call),
            slower,
            self.prior * self._certain,
            1.0 - 1.0 / params.memory,
            self._centre,
            self._lowest,
            self._highest,
        )
        fixed, per_context, per_token, _ = self._scales.tolist()
        self.bent = Bent(
            per_context * fitted.alpha,
            per_token * fitted.gamma,
            fixed * fitted.delta,
            fitted.knee,
            per_token * fitted.gamma_more,
        )


@njit(cache=True)
def _learn(
    squares: Floats,
    products: Floats,
    scales: Floats,
    parts: tuple[float, float, float, float],
    slower: float,
    prior: Floats,
    keep: float,
    centre: Floats,
    lowest: Floats,
    highest: Floats,
) -> None:
    for row in range(_PARTS):
        for column in range(_PARTS):
            squares[row, column] = keep * squares[row, column] + parts[row] * parts[column]
        products[row] = keep * products[row] + parts[row] * slower
    # Least squares in a box, one scale after the other from where they are: a few sweeps.
    for _ in range(_SWEEPS):
        moved = 0.0
        for row in range(_PARTS):
            others = squares[row] @ scales - squares[row, row] * scales[row]
            best = prior[row] * centre[row] + products[row] - others
            best = min(max(best / (prior[row] + squares[row, row]), lowest[row]), highest[row])
            moved = max(moved, abs(best - scales[row]))
            scales[row] = best
        if moved < _SETTLED:
            break

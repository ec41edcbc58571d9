"""A fitted cost model that follows what forwards really take: other load, heat, a shared machine.

The fit's shape stays (its knee and the slopes' ratio there); three scales are learned, of its fixed
part, of context, and of tokens, for a forward that is slower for its tokens is not slower for
everything. They stay within bounds, so no run of odd observations can make a forward cost nothing,
or forever.
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
_SWEEPS = 200
_SETTLED = 1e-9


@dataclass(frozen=True, slots=True)
class RefinementParams:
    furthest: float = 4.0
    """The scales stay between its inverse and itself."""
    memory: float = 256.0
    """Observations that count, the latest most."""
    prior: float = 0.02
    """Observations that the fit itself is worth, each of one part alone. Little: a part is a small
    share of most forwards, and shows itself only in how they differ."""


class RefinedCost:
    """A CostModel: Σ sᵢ·partᵢ, the parts of T(context, tokens) as it was fitted.

    s minimises the squared errors of the observations, each relative to its fitted time and older
    ones fading, plus prior·Σ (sᵢ - 1)², within [1/furthest, furthest]³.
    """

    def __init__(self, fitted: CostModel, params: RefinementParams | None = None) -> None:
        self._fitted = fitted
        self._params = params or RefinementParams()
        self._shape = fitted.bent
        self._scales = np.ones(3)
        # The normal equations of the scales.
        self._squares = self._params.prior * np.eye(3)
        self._products = self._params.prior * np.ones(3)
        self.bent = self._shape

    def predict(self, context: float, tokens: float) -> float:
        return self.bent.predict(context, tokens)

    def observe(self, context: float, tokens: float, seconds: float) -> None:
        """One forward. What lies beyond the bounds counts as lying on them."""
        if not isfinite(seconds):
            raise ValueError(f"a forward took {seconds} seconds")
        fitted, params = self._shape, self._params
        expected = self._fitted.predict(context, tokens)
        if expected <= 0.0:
            return  # nothing to scale
        usual = self.predict(context, tokens) / expected
        slower = min(max(seconds / expected, usual / _ODD), usual * _ODD)
        slower = min(max(slower, 1.0 / params.furthest), params.furthest)
        of_fixed, of_context = fitted.delta / expected, fitted.alpha * context / expected
        _learn(
            self._squares,
            self._products,
            self._scales,
            (of_fixed, of_context, 1.0 - of_fixed - of_context),
            slower,
            params.prior,
            1.0 - 1.0 / params.memory,
            params.furthest,
        )
        fixed, per_context, per_token = self._scales.tolist()
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
    parts: tuple[float, float, float],
    slower: float,
    prior: float,
    keep: float,
    furthest: float,
) -> None:
    for row in range(3):
        for column in range(3):
            kept = prior if row == column else 0.0
            squares[row, column] = kept + keep * (squares[row, column] - kept)
            squares[row, column] += parts[row] * parts[column]
        products[row] = prior + keep * (products[row] - prior) + parts[row] * slower
    # Least squares in a box, one scale after the other from where they are: a few sweeps.
    for _ in range(_SWEEPS):
        moved = 0.0
        for row in range(3):
            others = squares[row] @ scales - squares[row, row] * scales[row]
            best = (products[row] - others) / squares[row, row]
            best = min(max(best, 1.0 / furthest), furthest)
            moved = max(moved, abs(best - scales[row]))
            scales[row] = best
        if moved < _SETTLED:
            break

"""A fitted cost model that is refined online, as other load, heat or a shared machine change it.

The shape of the fit stays (its knee and the ratio of its slopes); three scales are learned: of the
fixed part, of context and of tokens. Where calls consist of several forwards, the overhead of a
call is learned as well: otherwise calls of one step would make the steps of longer calls look
expensive. All of it stays within bounds, so no sequence of outliers can make a forward cost nothing
or far too much.
"""

from math import isfinite

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.cost import CostModel, ForwardCost

Floats = NDArray[np.float64]

_OUTLIER = 2.0
"""Observations more than this many times as long, or as short, as predicted are clipped: they are
pauses or clock errors."""
_SPREAD = 0.5
"""Prior standard deviation of a scale. Observations that scatter by σ around the model weigh 1 / σ²
each and the fit 1 / spread², so that noise hardly moves the scale of a part that is a small share
of most forwards."""
_SCATTER = 0.07
"""Initial estimate of σ, relative to the predicted time."""
_CALL_SPREAD = 0.25
"""Prior standard deviation of a call's overhead, as a share of the largest."""
_SCATTER_MEMORY = 0.02
_MOST_PRIOR = 1.0
_LEAST_TOKEN_SHARE = 1 / 256
"""The share of a forward's fixed part that a token costs at first where the fit has found
nothing."""
_FURTHEST = 16.0
"""The scales stay within [1 / this, this]: a profile measured beside other work can be wrong by a
factor of ten."""
_KEEP = 1.0 - 1.0 / 256
"""The factor by which earlier observations decay with each new one: the fit is over some 256."""
_SWEEPS = 200
_CONVERGED = 1e-9
_PARTS = 4
"""Fixed part, context, tokens, and the overhead of a call."""


class RefinedCost:
    """A CostModel Σ sᵢ·partᵢ, with the parts of the fitted T(context, tokens).

    s minimises the squared errors of the observations, each relative to its fitted time and older
    ones fading, plus prior·Σ (sᵢ - 1)², within [1/_FURTHEST, _FURTHEST]³. A call of n forwards
    takes n times that and s₄ forwards of one token, 0 ≤ s₄ ≤ longest_call. The prior of s₄ is
    weaker, so unexplained time is attributed to the call first.
    """

    def __init__(self, fitted: CostModel, longest_call: float = 0.0) -> None:
        """`longest_call`: the largest overhead of a call, in forwards of one token; 0: calls have
        none."""
        self._shape = _with_token_cost(fitted.piecewise)
        self._call_unit_s = fitted.predict(0, 1)
        self._longest_call = longest_call
        spread = np.array([_SPREAD] * 3 + [max(_SPREAD, _CALL_SPREAD * longest_call)])
        self._box = np.array(
            [
                (1.0, 1.0, 1.0, 0.0),
                [1.0 / _FURTHEST] * 3 + [0.0],
                [_FURTHEST] * 3 + [longest_call],
                (_SPREAD / spread) ** 2,
            ]
        )
        self._scales = self._box[_CENTRE].copy()
        self._normal = np.zeros((_PARTS + 1, _PARTS))
        """The normal equations of the scales without the prior: AᵀA, and Aᵀb in the last row."""
        self._variance = _SCATTER**2
        self.piecewise = self._shape

    @property
    def prior(self) -> float:
        """How many observations the fit itself counts for."""
        return _prior.py_func(self._variance)

    @property
    def call_s(self) -> float:
        """The overhead of a call: what it takes besides its forwards."""
        return float(self._scales[3]) * self._call_unit_s

    def predict(self, context: float, tokens: float) -> float:
        return self.piecewise.predict(context, tokens)

    def observe(self, context: float, tokens: float, seconds: float, forwards: int = 1) -> None:
        """One call of `forwards` equal forwards that took `seconds`, clipped to the bounds."""
        if not isfinite(seconds):
            raise ValueError(f"a forward took {seconds} seconds")
        fitted = self._shape
        one_s = fitted.predict(context, tokens)
        if one_s <= 0.0:
            return  # the model predicts 0, which no scale changes
        fitted_s = forwards * one_s
        fixed_share, context_share = fitted.delta / one_s, fitted.alpha * context / one_s
        token_share = 1.0 - fixed_share - context_share
        self._variance = _learn(
            (fixed_share, context_share, token_share, self._call_unit_s / fitted_s),
            seconds / fitted_s,
            self._longest_call,
            self._box,
            self._normal,
            self._scales,
            self._variance,
        )
        fixed, per_context, per_token, _ = self._scales.tolist()
        self.piecewise = ForwardCost(
            per_context * fitted.alpha,
            per_token * fitted.gamma,
            fixed * fitted.delta,
            fitted.knee,
            per_token * fitted.gamma_more,
            fitted.step_from,
            fitted.step_to,
        )


def _with_token_cost(shape: ForwardCost) -> ForwardCost:
    """A fit to few, noisy samples may say that tokens are free, and no scale would change that."""
    if shape.gamma + shape.gamma_more > 0.0:
        return shape
    return shape._replace(gamma=_LEAST_TOKEN_SHARE * shape.delta)


_CENTRE, _LOWEST, _HIGHEST, _PRECISION = range(4)
"""Rows of `RefinedCost._box`, one column per scale: its prior value, its bounds, and the precision
of the prior relative to that of a forward's parts."""


@njit(cache=True)
def _prior(variance: float) -> float:
    return min(variance / _SPREAD**2, _MOST_PRIOR)


@njit(cache=True)
def _learn(
    parts: tuple[float, float, float, float],
    ratio: float,
    longest_call: float,
    box: Floats,
    normal: Floats,
    scales: Floats,
    variance: float,
) -> float:
    """Adds one observation: a call that took `ratio` times the fitted time of its forwards, of
    which `parts` are the shares of each scale. Updates `normal` and `scales` in place and returns
    the new variance."""
    predicted = 0.0
    for part in range(_PARTS):
        predicted += parts[part] * scales[part]
    ratio = min(max(ratio, predicted / _OUTLIER), predicted * _OUTLIER)
    ratio = min(max(ratio, 1.0 / _FURTHEST), _FURTHEST + longest_call * parts[3])
    error = (ratio - predicted) / predicted
    variance += _SCATTER_MEMORY * (error * error - variance)
    squares, products = normal[:_PARTS], normal[_PARTS]
    for row in range(_PARTS):
        for column in range(_PARTS):
            squares[row, column] = _KEEP * squares[row, column] + parts[row] * parts[column]
        products[row] = _KEEP * products[row] + parts[row] * ratio
    # Least squares in a box by coordinate descent from the last scales, which takes a few sweeps.
    for _ in range(_SWEEPS):
        moved = 0.0
        for row in range(_PARTS):
            prior = _prior(variance) * box[_PRECISION, row]
            # A loop, because the call into BLAS takes longer than a whole sweep.
            others = 0.0
            for column in range(_PARTS):
                others += squares[row, column] * scales[column]
            others -= squares[row, row] * scales[row]
            best = prior * box[_CENTRE, row] + products[row] - others
            best /= prior + squares[row, row]
            best = min(max(best, box[_LOWEST, row]), box[_HIGHEST, row])
            moved = max(moved, abs(best - scales[row]))
            scales[row] = best
        if moved < _CONVERGED:
            break
    return variance

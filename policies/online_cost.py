"""A fitted cost model that follows what forwards really take: other load, heat, a shared machine.

The fit's shape stays (its knee, the ratio of context to tokens); two scales are learned, one for
its fixed part and one for the rest. They stay within bounds, so no run of odd observations can
make a forward cost nothing, or forever.
"""

from dataclasses import dataclass
from math import isfinite

from policies.cost import Bent, CostModel


@dataclass(frozen=True, slots=True)
class RefinementParams:
    furthest: float = 4.0
    """The scales stay between its inverse and itself."""
    memory: float = 256.0
    """Observations that count, the latest most."""
    prior: float = 1.0
    """Observations that the fit itself is worth."""


class RefinedCost:
    """A CostModel: s₀·T(0, 0) + s₁·(T(context, tokens) - T(0, 0)), T as it was fitted.

    (s₀, s₁) minimise the squared errors of the observations, each relative to its fitted time and
    older ones fading, plus prior·((s₀ - 1)² + (s₁ - 1)²), within [1/furthest, furthest]².
    """

    def __init__(self, fitted: CostModel, params: RefinementParams | None = None) -> None:
        self._fitted = fitted
        self._params = params or RefinementParams()
        self._shape = fitted.bent
        self._fixed_s = fitted.predict(0.0, 0.0)
        self._fixed_scale = self._rest_scale = 1.0
        # The normal equations of the two scales.
        prior = self._params.prior
        self._ff, self._fr, self._rr = prior, 0.0, prior
        self._f1, self._r1 = prior, prior

    def predict(self, context: float, tokens: float) -> float:
        rest = self._fitted.predict(context, tokens) - self._fixed_s
        return self._fixed_scale * self._fixed_s + self._rest_scale * rest

    @property
    def bent(self) -> Bent:
        rest, fitted = self._rest_scale, self._shape
        return Bent(
            rest * fitted.alpha,
            rest * fitted.gamma,
            self._fixed_scale * fitted.delta,
            fitted.knee,
            rest * fitted.gamma_more,
        )

    def observe(self, context: float, tokens: float, seconds: float) -> None:
        """One forward. What lies beyond the bounds counts as lying on them."""
        if not isfinite(seconds):
            raise ValueError(f"a forward took {seconds} seconds")
        expected = self._fitted.predict(context, tokens)
        if expected <= 0.0:
            return  # nothing to scale
        slower = self._clip(seconds / expected)
        fixed = self._fixed_s / expected
        rest = 1.0 - fixed
        prior, keep = self._params.prior, 1.0 - 1.0 / self._params.memory
        self._ff = prior + keep * (self._ff - prior) + fixed * fixed
        self._fr = keep * self._fr + fixed * rest
        self._rr = prior + keep * (self._rr - prior) + rest * rest
        self._f1 = prior + keep * (self._f1 - prior) + fixed * slower
        self._r1 = prior + keep * (self._r1 - prior) + rest * slower
        self._solve()

    def _solve(self) -> None:
        """Least squares in a box of two dimensions: the free optimum, or the best on an edge."""
        determinant = self._ff * self._rr - self._fr * self._fr  # > 0 thanks to the prior
        fixed = (self._f1 * self._rr - self._r1 * self._fr) / determinant
        rest = (self._r1 * self._ff - self._f1 * self._fr) / determinant
        if self._clip(fixed) != fixed or self._clip(rest) != rest:
            edges = (1.0 / self._params.furthest, self._params.furthest)
            fixed, rest = min(
                [(edge, self._clip((self._r1 - self._fr * edge) / self._rr)) for edge in edges]
                + [(self._clip((self._f1 - self._fr * edge) / self._ff), edge) for edge in edges],
                key=self._loss,
            )
        self._fixed_scale, self._rest_scale = fixed, rest

    def _loss(self, scales: tuple[float, float]) -> float:
        """The squared errors, up to a constant."""
        fixed, rest = scales
        quadratic = self._ff * fixed**2 + 2 * self._fr * fixed * rest + self._rr * rest**2
        return quadratic - 2 * (self._f1 * fixed + self._r1 * rest)

    def _clip(self, scale: float) -> float:
        return min(max(scale, 1.0 / self._params.furthest), self._params.furthest)

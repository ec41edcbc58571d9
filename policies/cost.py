"""What a forward costs: SpecServe's linear model (eq. 2) and a roofline with a knee.

`context` is the number of KV tokens that a forward reads (over its requests, the committed
tokens of each), `tokens` the number of new rows in it: one definition, in fits and in use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import nnls

KNEE_CANDIDATES = 256

Floats = NDArray[np.float64]


class Bent(NamedTuple):
    """The one shape of all our cost models, as compiled loops take it: a line in context and
    tokens, with more for each token beyond the knee, and perhaps a step in it."""

    alpha: float
    gamma: float
    delta: float
    knee: float = 0.0
    gamma_more: float = 0.0
    step_from: float = 0.0
    """More tokens than these take at least as long as `step_to`."""
    step_to: float = 0.0

    def predict(self, context: float, tokens: float) -> float:
        # As Python: for one number, the way into compiled code takes longer than the sum.
        return bent_seconds.py_func(self, float(context), float(tokens))


FOR_NOTHING = Bent(0.0, 0.0, 0.0)


class Predicts(Protocol):
    def predict(self, context: float, tokens: float) -> float:
        """Seconds of one forward."""
        ...


class CostModel(Predicts, Protocol):
    @property
    def bent(self) -> Bent:
        """The same."""
        ...


Cost = TypeVar("Cost", bound=Predicts)


@dataclass(frozen=True, slots=True)
class ForwardSample:
    """One point of a profile."""

    context: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinearCost:
    """T = α·context + γ·tokens + δ (SpecServe, eq. 2; eq. 5 for the target)."""

    alpha: float
    gamma: float
    delta: float

    def predict(self, context: float, tokens: float) -> float:
        return self.alpha * context + self.gamma * tokens + self.delta

    @property
    def bent(self) -> Bent:
        return Bent(float(self.alpha), float(self.gamma), float(self.delta))


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """As LinearCost up to the knee, where weights are what a forward waits for; behind it,
    where it computes, each token costs `gamma_more` on top. Convex in tokens, but for the step of
    a device that computes more than `step_from` tokens as `step_to` at least."""

    alpha: float
    gamma: float
    delta: float
    knee: int
    gamma_more: float
    step_from: int = 0
    step_to: int = 0

    def predict(self, context: float, tokens: float) -> float:
        return self.bent.predict(context, tokens)

    @property
    def bent(self) -> Bent:
        line = (float(self.alpha), float(self.gamma), float(self.delta))
        bend = (float(self.knee), float(self.gamma_more))
        return Bent(*line, *bend, float(self.step_from), float(self.step_to))


@njit(cache=True)
def bent_seconds(cost: Bent, context: float, tokens: float) -> float:
    if tokens > cost.step_from:
        tokens = max(tokens, cost.step_to)
    beyond = max(0.0, tokens - cost.knee)
    return cost.alpha * context + cost.gamma * tokens + cost.delta + cost.gamma_more * beyond


def fit_linear(samples: Sequence[ForwardSample]) -> LinearCost:
    """Non-negative least squares of relative errors, so that short forwards count as well."""
    context, tokens = _axes(samples)
    (alpha, gamma, delta), _ = _fit_relative([context, tokens, np.ones_like(tokens)], samples)
    return LinearCost(alpha, gamma, delta)


def fit_roofline(
    samples: Sequence[ForwardSample], step_from: int = 0, step_to: int = 0
) -> RooflineCost:
    """The knee with the least residual, among the token counts strictly inside the samples."""
    context, tokens = _axes(samples)
    tokens = np.where(tokens > step_from, np.maximum(tokens, step_to), tokens)
    inside = np.geomspace(
        tokens.min() + 1, max(tokens.max() - 1, tokens.min() + 1), KNEE_CANDIDATES
    )
    best: RooflineCost | None = None
    least = np.inf
    for knee in np.unique(inside.astype(int)).tolist():
        beyond = np.maximum(0.0, tokens - knee)
        columns = [context, tokens, np.ones_like(tokens), beyond]
        (alpha, gamma, delta, gamma_more), residual = _fit_relative(columns, samples)
        if residual < least:
            bend = (knee, gamma_more, step_from, step_to)
            best, least = RooflineCost(alpha, gamma, delta, *bend), residual
    assert best is not None
    return best


def token_budget(cost: RooflineCost, largest: int) -> int:
    """AdaServe's budget of tokens per forward: what fits before the knee, at most `largest`.

    At least so many that at the slope behind the knee they cost as much as the forward's fixed
    part, which is where a true roofline has its knee: a fit may bend wherever noise does.
    """
    slope = cost.gamma + cost.gamma_more
    budget = cost.delta / slope if slope > 0 else float(largest)
    if cost.gamma_more > 0:
        budget = max(budget, cost.knee)
    return max(1, min(largest, int(budget)))


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Mean relative errors of predicted seconds."""

    in_sample: float
    below_knee: float | None
    """Of points that the fit did not see, up to the knee; None without such points."""
    above_knee: float | None


def fit_errors(
    fit: Callable[[Sequence[ForwardSample]], Cost], samples: Sequence[ForwardSample], knee: float
) -> FitErrors:
    """Fits twice, each time on one half of a checkerboard over the grid, judged on the other."""
    black, white = _checkerboard(samples)
    below: list[float] = []
    above: list[float] = []
    for seen, unseen in ((black, white), (white, black)):
        cost = fit(seen)
        for sample in unseen:
            side = below if sample.tokens <= knee else above
            side.append(_relative_error(cost, sample))
    known = fit(samples)
    return FitErrors(
        in_sample=float(np.mean([_relative_error(known, sample) for sample in samples])),
        below_knee=float(np.mean(below)) if below else None,
        above_knee=float(np.mean(above)) if above else None,
    )


def _relative_error(cost: Predicts, sample: ForwardSample) -> float:
    return abs(cost.predict(sample.context, sample.tokens) / sample.seconds - 1)


def _axes(samples: Sequence[ForwardSample]) -> tuple[Floats, Floats]:
    return (
        np.array([sample.context for sample in samples], np.float64),
        np.array([sample.tokens for sample in samples], np.float64),
    )


def _fit_relative(
    columns: Sequence[Floats], samples: Sequence[ForwardSample]
) -> tuple[list[float], float]:
    seconds = np.array([sample.seconds for sample in samples], np.float64)
    relative = np.stack(columns, axis=1) / seconds[:, None]
    # Columns of one scale: context runs to thousands beside the constant's 1.
    scale = np.maximum(relative.max(axis=0), np.finfo(np.float64).tiny)
    coefficients, residual = nnls(relative / scale, np.ones_like(seconds))
    return (coefficients / scale).tolist(), float(residual)


def _checkerboard(
    samples: Sequence[ForwardSample],
) -> tuple[list[ForwardSample], list[ForwardSample]]:
    """Neighbours along either axis fall to different halves."""
    token_rank = {value: rank for rank, value in enumerate(sorted({s.tokens for s in samples}))}
    halves: tuple[list[ForwardSample], list[ForwardSample]] = ([], [])
    by_tokens: dict[int, list[ForwardSample]] = {}
    for sample in samples:
        by_tokens.setdefault(sample.tokens, []).append(sample)
    for tokens, row in by_tokens.items():
        for rank, sample in enumerate(sorted(row, key=lambda s: s.context)):
            halves[(token_rank[tokens] + rank) % 2].append(sample)
    return halves

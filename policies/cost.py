"""The cost model of a forward pass: SpecServe's linear one (eq. 2), or a roofline with a knee.

In fits and in predictions alike, `context` is the number of KV tokens that a forward reads (the sum
of its requests' committed tokens), and `tokens` the number of new rows that it computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

KNEE_CANDIDATES = 256

Floats = NDArray[np.float64]


class ForwardCost(NamedTuple):
    """T = α·context + γ·tokens + δ (SpecServe, eq. 2; eq. 5 for the target) up to the knee, where a
    forward is bound by reading weights; beyond it, where it is bound by computing, each token costs
    `gamma_more` on top.

    Convex in tokens, except for the optional step of a device that computes any number of tokens
    above `step_from` as at least `step_to`.
    """

    alpha: float
    """Seconds per context token."""
    gamma: float
    """Seconds per token."""
    delta: float
    """Seconds of every forward."""
    knee: float = 0.0
    gamma_more: float = 0.0
    """Additional seconds per token beyond the knee."""
    step_from: float = 0.0
    """Above so many tokens, a forward takes at least as long as one of `step_to`."""
    step_to: float = 0.0

    def predict(self, context: float, tokens: float) -> float:
        # Not compiled: for a single value the call into compiled code takes longer than the sum.
        return forward_seconds.py_func(self, float(context), float(tokens))

    @property
    def piecewise(self) -> "ForwardCost":
        """As a CostModel; in floats, for which loops are compiled."""
        return ForwardCost(*map(float, self))


class SwitchCost(NamedTuple):
    """The time to preempt a request and to resume it: its KV moves to host memory and back, or is
    computed again."""

    fixed_s: float = 0.0
    per_token_s: float = 0.0
    """For each of its committed tokens."""

    def predict(self, tokens: float) -> float:
        return self.fixed_s + self.per_token_s * tokens


NO_SWITCH = SwitchCost()


class CostModel(Protocol):
    def predict(self, context: float, tokens: float) -> float:
        """Seconds of one forward."""
        ...

    @property
    def piecewise(self) -> ForwardCost:
        """The same model, for compiled loops."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardSample:
    """One measurement of a profile."""

    context: int
    tokens: int
    seconds: float


@njit(cache=True)
def forward_seconds(cost: ForwardCost, context: float, tokens: float) -> float:
    if tokens > cost.step_from:
        tokens = max(tokens, cost.step_to)
    beyond = max(0.0, tokens - cost.knee)
    return cost.alpha * context + cost.gamma * tokens + cost.delta + cost.gamma_more * beyond


def fit_linear(samples: Sequence[ForwardSample]) -> ForwardCost:
    """Non-negative least squares of relative errors, so that short forwards count as much as long
    ones."""
    context, tokens = _axes(samples)
    line, _ = _fit_relative([context, tokens, np.ones_like(tokens)], samples)
    return ForwardCost(*line)


def fit_roofline(
    samples: Sequence[ForwardSample], step_from: int = 0, step_to: int = 0
) -> ForwardCost:
    """The roofline with the least residual over all knees inside the range of the samples."""
    context, tokens = _axes(samples)
    tokens = np.where(tokens > step_from, np.maximum(tokens, step_to), tokens)
    inside = np.geomspace(
        tokens.min() + 1, max(tokens.max() - 1, tokens.min() + 1), KNEE_CANDIDATES
    )
    best: ForwardCost | None = None
    least = np.inf
    for knee in np.unique(inside.astype(int)).tolist():
        beyond = np.maximum(0.0, tokens - knee)
        columns = [context, tokens, np.ones_like(tokens), beyond]
        (alpha, gamma, delta, gamma_more), residual = _fit_relative(columns, samples)
        if residual < least:
            bend = (knee, gamma_more, step_from, step_to)
            best, least = ForwardCost(alpha, gamma, delta, *bend), residual
    assert best is not None
    return best


def token_budget(cost: ForwardCost, largest: int) -> int:
    """AdaServe's budget of tokens per forward: those up to the knee, at most `largest`.

    A fitted knee may be an artefact of noise, so the budget is at least the number of tokens that,
    at the slope beyond the knee, cost as much as the fixed part of a forward: a true roofline has
    its knee there.
    """
    slope = cost.gamma + cost.gamma_more
    budget = cost.delta / slope if slope > 0 else float(largest)
    if cost.gamma_more > 0:
        budget = max(budget, cost.knee)
    return max(1, min(largest, int(budget)))


def recompute_cost(cost: CostModel, chunk: int) -> SwitchCost:
    """The cost of a preemption without swap: its tokens are read again, in chunks of so many."""
    fixed_s = cost.predict(0, 1)
    return SwitchCost(fixed_s, max(0.0, cost.predict(0, chunk) - fixed_s) / chunk)


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
    # Imported here, because it takes half a second that processes which fit nothing need not wait.
    from scipy.optimize import nnls

    # Scaled for conditioning: context reaches thousands, the constant is 1.
    scale = np.maximum(relative.max(axis=0), np.finfo(np.float64).tiny)
    coefficients, residual = nnls(relative / scale, np.ones_like(seconds))
    return (coefficients / scale).tolist(), float(residual)

"""Draws the confidence and acceptance of a drafter's proposals without running a model.

At each position of each request every drafter has a latent *predictability* u, uniform in [0, 1].
It determines both the confidence of the first choice and the probability that this choice is the
target's token, so drafters are as badly calibrated as they were recorded. Predictability is
correlated within a request, drifts over its first tokens and settles (LAPS-SD, Fig. 3), has
streaks, and is partly shared between drafters: positions that are hard for one are mostly hard for
all.

    z(n) = √request_share · G + √early_share · e^(-n / early_tokens) · H + √(the rest) · ε(n)
    u(n) = Φ(z(n))       G, H: per request; ε: autoregressive noise per position; all N(0, 1)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr
from scipy.stats import beta

from cluster.plan.simulator.randomness import BLOCK, generator

Floats = NDArray[np.float64]

WRONG = -1
"""The rank of the target's token where no sibling holds it."""
_QUANTILES = 65
"""Steps of predictability in a model's curves."""
_CONCENTRATION = 1.5
"""a + b of the Beta distribution of acceptance probabilities: below 2, most are near 0 or 1."""
_AGREEMENT = 0.5
"""Share of the noise, per request and per position, that is common to all drafters."""


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """One drafter in one domain."""

    confidence: tuple[float, ...]
    """Confidence of the first choice, at even steps of predictability from 0 to 1."""
    accepted: tuple[float, ...]
    """The probability that the first choice is right, at the same steps."""
    silent: float = 0.0
    """Share of positions, the least predictable ones, without any proposal (lookup)."""
    request_share: float = 0.0
    """Share of the variance of predictability that is constant in a request."""
    early_share: float = 0.0
    """Share at a request's first token that decays afterwards."""
    early_tokens: float = 32.0
    """Tokens in which the amplitude of that part falls to 1/e."""
    persistence: float = 0.0
    """Correlation of ε between neighbouring positions."""
    rank_shares: tuple[float, ...] = ()
    """Where the first choice is wrong: how often the second, third, ... choice is right."""
    sibling_confidence: tuple[float, ...] = ()
    """Confidence of the second, third, ... choice, as shares of 1 - the first one's."""

    def __post_init__(self) -> None:
        if len(self.confidence) != len(self.accepted) or len(self.confidence) < 2:
            raise ValueError("confidence and accepted need the same number of steps, at least two")
        if len(self.rank_shares) != len(self.sibling_confidence):
            raise ValueError("rank_shares and sibling_confidence differ in length")
        if self.request_share + self.early_share > 1.0:
            raise ValueError("request_share and early_share together exceed 1")

    @property
    def acceptance(self) -> float:
        """Mean over all positions of the first choice's."""
        return (1.0 - self.silent) * float(np.trapezoid(self.accepted) / (len(self.accepted) - 1))


def synthetic(
    acceptance: float,
    *,
    request_share: float = 0.2,
    early_share: float = 0.0,
    early_tokens: float = 32.0,
    persistence: float = 0.0,
    rank_shares: tuple[float, ...] = (0.3, 0.12, 0.08),
    sibling_confidence: tuple[float, ...] = (0.45, 0.2, 0.1),
) -> DrafterModel:
    """A calibrated drafter of which only the mean acceptance is known; acceptance probabilities are
    Beta-distributed."""
    steps = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    right = beta.ppf(steps, _CONCENTRATION * acceptance, _CONCENTRATION * (1 - acceptance))
    right = np.clip(right * acceptance / right.mean(), 0.0, 1.0)
    return DrafterModel(
        confidence=tuple(right.tolist()),
        accepted=tuple(right.tolist()),
        request_share=request_share,
        early_share=early_share,
        early_tokens=early_tokens,
        persistence=persistence,
        rank_shares=rank_shares,
        sibling_confidence=sibling_confidence,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """A drafter's proposals at BLOCK positions, each after the target's own prefix."""

    confidence: NDArray[np.float32]
    """[positions, siblings], descending; 0: no proposal."""
    rank: NDArray[np.int64]
    """[positions]: which sibling is the target's token, or WRONG."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """All drafters in all domains."""

    models: Mapping[tuple[str, str], DrafterModel]
    """By (domain, drafter)."""

    def draws(self, seed: int, domain: str, drafter: str, block: int) -> Draws:
        """One block's draws for the request with this sampling seed."""
        model = self.models[domain, drafter]
        request = _mixed(
            generator(seed, "request").standard_normal(2),
            generator(seed, drafter, "request").standard_normal(2),
        )
        own = generator(seed, drafter, block)
        noise, acceptance_noise = _mixed(
            generator(seed, block).standard_normal((2, BLOCK)),
            own.standard_normal((2, BLOCK)),
        )
        u = ndtr(_normal_scores(model, request, noise, block))
        proposes = u >= model.silent
        u = np.where(proposes, (u - model.silent) / (1.0 - model.silent), 0.0)
        steps = np.linspace(0.0, 1.0, len(model.confidence))
        first = np.where(proposes, np.interp(u, steps, model.confidence), 0.0)
        probability = np.interp(u, steps, model.accepted)
        right = proposes & (ndtr(acceptance_noise) < probability)
        rank = np.searchsorted(np.cumsum(model.rank_shares), own.random(BLOCK), "right") + 1
        rank[(rank > len(model.rank_shares)) | ~proposes] = WRONG
        rank[right] = 0
        return Draws(_with_siblings(first, model.sibling_confidence), rank)


def _mixed(shared: Floats, own: Floats) -> Floats:
    """N(0, 1) again."""
    return np.sqrt(1.0 - _AGREEMENT) * own + np.sqrt(_AGREEMENT) * shared


def _normal_scores(model: DrafterModel, request: Floats, noise: Floats, block: int) -> Floats:
    """z of the formula above."""
    position = block * BLOCK + np.arange(BLOCK)
    early = np.sqrt(model.early_share) * np.exp(-position / model.early_tokens)
    if model.persistence:
        kept, fresh = model.persistence, np.sqrt(1.0 - model.persistence**2)
        before = [kept * noise[-1]]
        noise, _ = lfilter([fresh], [1.0, -kept], noise, zi=before)
    rest = np.sqrt(1.0 - model.request_share - early**2)
    return np.sqrt(model.request_share) * request[0] + early * request[1] + rest * noise


def _with_siblings(first: Floats, shares: tuple[float, ...]) -> NDArray[np.float32]:
    columns = [first, *((1.0 - first) * (first > 0) * share for share in shares)]
    return np.minimum.accumulate(np.stack(columns, axis=1), axis=1).astype(np.float32)

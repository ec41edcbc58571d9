"""Fits an acceptance model to recorded traces of drafters.

Means and curves are taken from the traces directly; correlations are moments of the normal scores
of the first choice's confidence, matched to the formula of benchmarks/simulator/acceptance.py.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls
from scipy.special import ndtri
from scipy.stats import rankdata

from benchmarks.simulator.acceptance import QUANTILES, Acceptance, DrafterModel
from lab.studies.recorder import Trace

Floats = NDArray[np.float64]
DomainDrafter = tuple[str, str]
"""(domain, drafter)"""

_EARLY_TOKENS = (8.0, 16.0, 32.0, 64.0, 128.0)
"""Candidates for `DrafterModel.early_tokens`."""
_APART = 8
"""Positions at this distance share no streak."""
_POSITIONS = 512
"""Positions of a request that correlations are computed from."""
_STEP = 4
_FEWEST = 30
"""Least number of rows for a sibling's statistics, and of requests for agreements."""


class Scores(NamedTuple):
    """One request's confidences as normal scores over all requests of the domain."""

    position: NDArray[np.int64]
    z: Floats


def fit_acceptance(traces: Sequence[Trace]) -> Acceptance:
    """Agreements come from pairs of drafters on the same requests; 0.5 where there are none."""
    recorded: dict[DomainDrafter, list[Trace]] = defaultdict(list)
    for trace in traces:
        recorded[trace.domain, trace.drafter].append(trace)
    models = {key: fit_drafter(of_drafter) for key, of_drafter in recorded.items()}
    scores = {key: _scores(of_drafter) for key, of_drafter in recorded.items()}
    return Acceptance(models, *_agreements(models, scores))


def fit_drafter(traces: Sequence[Trace]) -> DrafterModel:
    """The model of one drafter in one domain."""
    first = _first_confidences(traces)
    right = np.array([rank == 0 for trace in traces for rank in trace.ranks])
    proposes = first > 0
    if not proposes.any():
        return DrafterModel((0.0, 0.0), (0.0, 0.0), silent=1.0)
    confidence, accepted = _curves(first[proposes], right[proposes])
    scores = list(_scores(traces).values())
    pairs, total = _far_products(scores)
    request_share, early_share, early_tokens = _between_requests(pairs, total)
    probability = np.interp(first, confidence, accepted) * proposes
    rank_shares, sibling_confidence = _siblings(traces)
    return DrafterModel(
        confidence=tuple(confidence.tolist()),
        accepted=tuple(accepted.tolist()),
        silent=float(1.0 - proposes.mean()),
        request_share=request_share,
        early_share=early_share,
        early_tokens=early_tokens,
        persistence=_persistence(scores, float(total.sum() / max(pairs.sum(), 1.0))),
        residual=_residual(right - probability, probability, traces),
        rank_shares=rank_shares,
        sibling_confidence=sibling_confidence,
    )


def _first_confidences(traces: Sequence[Trace]) -> Floats:
    return np.array([row[0] if row else 0.0 for trace in traces for row in trace.confidences])


def _curves(first: Floats, right: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Quantiles of confidence, and the share of right choices around each, made monotone."""
    group = np.unique(first, return_inverse=True)[1]
    right_at = np.bincount(group, right) / np.bincount(group)
    order = np.argsort(first, kind="stable")
    step = np.rint(np.linspace(0, QUANTILES - 1, len(first))).astype(int)
    weight = np.bincount(step, minlength=QUANTILES).astype(np.float64)
    share = np.bincount(step, right_at[group[order]], QUANTILES) / np.maximum(weight, 1.0)
    accepted = isotonic_regression(share, weights=np.maximum(weight, 1e-9)).x
    steps = np.linspace(0, 1, QUANTILES)
    return np.interp(steps, np.linspace(0, 1, len(first)), first[order]), accepted


def _scores(traces: Sequence[Trace]) -> dict[str, Scores]:
    """By request."""
    first = _first_confidences(traces)
    z = ndtri((rankdata(first) - 0.5) / len(first))
    scores = {}
    start = 0
    for trace in traces:
        end = start + len(trace.positions)
        position = np.array(trace.positions)
        early = position < _POSITIONS
        scores[trace.request] = Scores(position[early], z[start:end][early])
        start = end
    return scores


def _far_products(scores: Sequence[Scores]) -> tuple[Floats, Floats]:
    """The number of pairs of positions that are far apart in a request, and the sum of their
    products, by the middle of the pair in steps of _STEP."""
    bins = _POSITIONS // _STEP
    pairs, total = np.zeros(bins), np.zeros(bins)
    for position, z in scores:
        low, high = np.nonzero(position[None, :] - position[:, None] >= _APART)
        place = (position[low] + position[high]) // (2 * _STEP)
        pairs += np.bincount(place, minlength=bins)
        total += np.bincount(place, z[low] * z[high], bins)
    return pairs, total


def _between_requests(pairs: Floats, total: Floats) -> tuple[float, float, float]:
    """E[z(i) z(j)] = request_share + early_share · e^(-(i + j) / early_tokens), i and j apart."""
    seen = np.flatnonzero(pairs)
    weight = np.sqrt(pairs[seen])
    least = np.inf
    request_share, early_share, early_tokens = 0.0, 0.0, _EARLY_TOKENS[0]
    for tokens in _EARLY_TOKENS if len(seen) else ():
        decay = np.exp(-2 * _STEP * (seen + 0.5) / tokens)
        columns = np.stack([weight, weight * decay], axis=1)
        shares, misfit = nnls(columns, weight * total[seen] / pairs[seen])
        if misfit < least:
            least, early_tokens = misfit, tokens
            request_share, early_share = shares.tolist()
    request_share = min(request_share, 0.9)
    return request_share, min(early_share, 0.95 - request_share), early_tokens


def _persistence(scores: Sequence[Scores], far: float) -> float:
    """From how much more alike neighbours are than positions far apart."""
    products = [(z[1:] * z[:-1])[np.diff(position) == 1] for position, z in scores]
    near = _mean(products)
    return float(np.clip((near - far) / (1.0 - far), 0.0, 0.95))


def _residual(error: Floats, probability: Floats, traces: Sequence[Trace]) -> float:
    """E[(Σ error)²] = v + residual² · v², v = Σ p (1 - p), each sum over one request."""
    request = np.repeat(np.arange(len(traces)), [len(trace.ranks) for trace in traces])
    total = np.bincount(request, error)
    variance = np.bincount(request, probability * (1 - probability))
    surplus = float((total**2 - variance).sum())
    return float(np.sqrt(max(0.0, surplus) / max(float((variance**2).sum()), 1e-12)))


def _siblings(traces: Sequence[Trace]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each sibling's share of the misses, and its confidence over what the first leaves."""
    rows = [
        (row, rank)
        for trace in traces
        for row, rank in zip(trace.confidences, trace.ranks, strict=True)
    ]
    shares: list[float] = []
    confidences: list[float] = []
    for sibling in range(1, max((len(row) for row, _ in rows), default=0)):
        present = [(row, rank) for row, rank in rows if len(row) > sibling]
        misses = [rank for _, rank in present if rank != 0]
        if len(present) < _FEWEST or not misses:
            break
        shares.append(misses.count(sibling) / len(misses))
        left = [min(row[sibling] / max(1.0 - row[0], 1e-6), 1.0) for row, _ in present]
        confidences.append(median(left))
    return tuple(shares), tuple(confidences)


def _agreements(
    models: Mapping[DomainDrafter, DrafterModel],
    scores: Mapping[DomainDrafter, dict[str, Scores]],
) -> tuple[float, float]:
    """The request and the position agreement of drafters in one domain."""
    requests: list[float] = []
    positions: list[float] = []
    for one, other in combinations(models, 2):
        both = scores[one].keys() & scores[other].keys()
        if one[0] != other[0] or len(both) < _FEWEST:
            continue
        same, far = _cross_products([(scores[one][r], scores[other][r]) for r in sorted(both)])
        share, other_share = models[one].request_share, models[other].request_share
        if share and other_share:
            requests.append(far / float(np.sqrt(share * other_share)))
        positions.append((same - far) / float(np.sqrt((1 - share) * (1 - other_share))))
    return _mean_share(requests), _mean_share(positions)


def _cross_products(pairs: Sequence[tuple[Scores, Scores]]) -> tuple[float, float]:
    """Mean products of two drafters' scores at the same positions, and at positions apart."""
    same: list[Floats] = []
    far: list[Floats] = []
    for one, other in pairs:
        distance = np.abs(one.position[:, None] - other.position[None, :])
        product = one.z[:, None] * other.z[None, :]
        same.append(product[distance == 0])
        far.append(product[distance >= _APART])
    return _mean(same), _mean(far)


def _mean(parts: Sequence[Floats]) -> float:
    joined = np.concatenate(parts)
    return float(joined.mean()) if len(joined) else 0.0


def _mean_share(shares: Sequence[float]) -> float:
    return float(np.clip(np.mean(shares), 0.0, 1.0)) if shares else 0.5

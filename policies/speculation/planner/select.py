"""Selects the nodes of a round's drafts that are verified, in one compiled call."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import PiecewiseLinear, forward_seconds
from policies.flat_trees import FlatTrees
from policies.protocols import Mask
from policies.speculation.forest import Floats, Forest, Ints, forest_of, seconds_by_draft_tokens
from policies.speculation.planner.best_prefix import (
    Items,
    Requests,
    best_prefix,
    item_order,
    no_caps,
)
from policies.speculation.planner.confidence_scale import ScaleTables, scales_of
from policies.speculation.planner.no_harm import Accounts, caps_of, weights_of
from policies.speculation.planner.objective import worth_of
from policies.speculation.slo import (
    BatchProgress,
    TimeCaps,
    context_lengths,
    needs_at,
    slo_caps,
    tpots_of,
    without_tpot,
)


class RoundState(NamedTuple):
    """Costs and times of the round besides its drafts."""

    verify: PiecewiseLinear
    prefill_tokens: int
    room: int
    """Draft tokens that the verification has room for."""
    now: float
    drafting_s: float
    """Time already spent on drafting, plus the overhead of a round with drafts."""
    wait_s: float


class Selected(NamedTuple):
    kept: Mask
    """Mask over all nodes."""
    seconds: float
    """Expected time between two verdicts of a request."""
    gain: Floats
    """Expected accepted tokens of each request."""
    drafts_share: float
    """Share of the verification's time that the kept drafts cause."""


@njit(cache=True)
def select_round(
    fair: bool,
    rows: Ints,
    progress: BatchProgress,
    trees: FlatTrees,
    scale_tables: ScaleTables,
    accounts: Accounts,
    state: RoundState,
) -> Selected:
    """The nodes to verify."""
    proposed = forest_of(trees)
    scale, path = scales_of(rows, scale_tables), proposed.path.copy()
    for node in range(len(path)):
        path[node] = min(path[node] * scale[proposed.owner[node]], 1.0)
    forest = Forest(proposed.starts, proposed.owner, proposed.depth, path)
    bound = without_tpot(progress)
    if not fair:
        bound[:] = False
    fixed = float(len(rows) + state.prefill_tokens)
    plain_s = state.wait_s + forward_seconds(state.verify, context_lengths(progress).sum(), fixed)
    no_harm = caps_of(rows, bound, plain_s, accounts)
    weight = weights_of(rows, bound, accounts)
    selected = _select_nodes(fair, progress, forest, weight, no_harm, state)
    for row in rows:
        scale_tables.open[row] = 0.0
    for node in np.flatnonzero(selected.kept):
        scale_tables.open[rows[proposed.owner[node]]] += proposed.path[node]
    return selected


@njit(cache=True)
def _select_nodes(
    fair: bool,
    progress: BatchProgress,
    forest: Forest,
    weight: Floats,
    no_harm: TimeCaps,
    state: RoundState,
) -> Selected:
    """Selects without SLOs first, since most rounds then keep them anyway; otherwise again with
    needs and SLO caps."""
    requests, context = len(weight), context_lengths(progress)
    most = min(len(forest.path), state.room)
    fixed = requests + state.prefill_tokens
    verify_s = seconds_by_draft_tokens(state.verify, context.sum(), fixed, most)
    seconds = state.drafting_s + state.wait_s + verify_s
    zeros = np.zeros(requests)
    slo = slo_caps(progress, state.now - state.drafting_s)
    batch = Requests(context, weight, zeros, zeros, no_caps(requests), no_harm, zeros, zeros)
    nodes, gain = _best_nodes(fair, forest, batch, seconds)
    if not np.all(seconds[len(nodes)] <= slo.slope * (1.0 + gain) + slo.offset):
        start_s = state.now - state.drafting_s
        need = np.maximum(needs_at(progress, start_s + seconds[len(nodes)]) - 1.0, 0.0)
        least = needs_at(progress, start_s + seconds[0]) - 1.0
        _drop_lost_slos(slo, need, forest, least)
        batch = Requests(context, weight, need, tpots_of(progress), slo, no_harm, zeros, zeros)
        nodes, gain = _best_nodes(fair, forest, batch, seconds)
    kept = np.zeros(len(forest.path), np.bool_)
    kept[nodes] = True
    kept_s = verify_s[len(nodes)]
    drafts_share = 1.0 - verify_s[0] / kept_s if kept_s > 0.0 else 0.0
    return Selected(kept, seconds[len(nodes)], gain, drafts_share)


@njit(cache=True)
def _drop_lost_slos(slo: TimeCaps, need: Floats, forest: Forest, least: Floats) -> None:
    """Removes the needs and caps of SLOs that all drafts of their request together cannot save in
    this round."""
    reach = np.zeros(len(least))
    for node in range(len(forest.path)):
        reach[forest.owner[node]] += forest.path[node]
    for request in range(len(least)):
        if reach[request] < least[request]:
            slo.offset[request], need[request] = np.inf, 0.0


@njit(cache=True)
def _best_nodes(
    fair: bool, forest: Forest, requests: Requests, seconds: Floats
) -> tuple[Ints, Floats]:
    """The nodes to keep, and the gain of each request from them."""
    count = len(forest.path)
    nodes, urgent = np.empty(count, np.int64), np.empty(count, np.bool_)
    gains, worth = np.empty((2, count))
    for request in range(len(requests.weight)):
        begin, end = forest.starts[request], forest.starts[request + 1]
        nodes[begin:end] = begin + _most_probable_first(forest.path[begin:end])
        gain = 0.0
        for at in range(begin, end):
            gains[at] = forest.path[nodes[at]]
            worth[at] = requests.weight[request] * worth_of(fair, gain, gains[at])
            urgent[at] = gain < requests.need[request]
            gain += gains[at]
    order = item_order(worth, forest.owner, urgent, requests.need)[: len(seconds) - 1]
    owner = forest.owner[order]
    items = Items(owner, gains[order], worth[order], min(urgent.sum(), len(order)))
    taken = best_prefix(fair, items, requests, seconds, seconds)
    gain_of = np.zeros(len(requests.weight))
    for at in range(taken):
        gain_of[owner[at]] += items.gain[at]
    return nodes[order[:taken]], gain_of


@njit(cache=True)
def _most_probable_first(path: Floats) -> Ints:
    for node in range(1, len(path)):
        if path[node] > path[node - 1]:
            return np.argsort(-path, kind="mergesort")
    return np.arange(len(path))  # already sorted, as in a chain

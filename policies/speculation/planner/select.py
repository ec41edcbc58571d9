"""Selects the nodes of a round's drafts that are verified, in one compiled call."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import ForwardCost, forward_seconds
from policies.flat_trees import FlatTrees
from policies.protocols import Mask
from policies.speculation.forest import Floats, Forest, Ints, forest_of, seconds_by_draft_tokens
from policies.speculation.planner.best_prefix import (
    Items,
    Requests,
    best_prefix,
    first_token_limit,
    item_order,
)
from policies.speculation.slo import (
    BatchProgress,
    TimeCaps,
    context_lengths,
    needs_at,
    slo_caps,
    tpots_of,
)


class RoundState(NamedTuple):
    """Costs and times of the round besides its drafts."""

    verify: ForwardCost
    prefill_tokens: int
    room: int
    """Draft tokens that the verification has room for."""
    now: float
    drafting_s: float
    """Time already spent on drafting, plus the overhead of a round with drafts."""
    wait_s: float
    due_s: Floats
    """When first tokens are due."""


class Selected(NamedTuple):
    kept: Mask
    """Mask over all nodes."""
    seconds: float
    """Expected time between two verdicts of a request."""


@njit(cache=True)
def select_round(progress: BatchProgress, trees: FlatTrees, state: RoundState) -> Selected:
    """The nodes to verify: without regard to SLOs, since most rounds then keep them anyway, or else
    again with needs and SLO caps."""
    forest, context = forest_of(trees), context_lengths(progress)
    requests = len(context)
    most = min(len(forest.path), state.room)
    fixed = requests + state.prefill_tokens
    verify_s = seconds_by_draft_tokens(state.verify, context.sum(), fixed, most)
    plain_s = forward_seconds(state.verify, context.sum(), float(requests))
    # Prompts take the same time whatever is verified. Counted in, they would make nodes seem cheap
    # that cost the other requests more time than they save.
    prompts_s = verify_s[0] - plain_s
    seconds = state.drafting_s + state.wait_s + verify_s - prompts_s
    zeros = np.zeros(requests)
    slo = slo_caps(progress, state.now - state.drafting_s + prompts_s)
    without_slos = TimeCaps(zeros, np.full(requests, np.inf))
    batch = Requests(context, zeros, zeros, without_slos, zeros, zeros, np.inf)
    nodes, gain = _best_nodes(forest, batch, seconds)
    start_s = state.now - state.drafting_s + prompts_s
    limit_s = first_token_limit(state.due_s - start_s, seconds[0])
    in_time = seconds[len(nodes)] <= limit_s
    if not in_time or not np.all(seconds[len(nodes)] <= slo.slope * (1.0 + gain) + slo.offset):
        need = np.maximum(needs_at(progress, start_s + seconds[len(nodes)]) - 1.0, 0.0)
        least = needs_at(progress, start_s + seconds[0]) - 1.0
        _drop_lost_slos(slo, need, forest, least)
        batch = Requests(context, need, tpots_of(progress), slo, zeros, zeros, limit_s)
        nodes, gain = _best_nodes(forest, batch, seconds)
    kept = np.zeros(len(forest.path), np.bool_)
    kept[nodes] = True
    return Selected(kept, seconds[len(nodes)] + prompts_s)


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
def _best_nodes(forest: Forest, requests: Requests, seconds: Floats) -> tuple[Ints, Floats]:
    """The nodes to keep, and the gain of each request from them."""
    count = len(forest.path)
    nodes, urgent, gains = np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count)
    for request in range(len(requests.need)):
        begin, end = forest.starts[request], forest.starts[request + 1]
        nodes[begin:end] = begin + _most_probable_first(forest.path[begin:end])
        gain = 0.0
        for at in range(begin, end):
            gains[at] = forest.path[nodes[at]]
            urgent[at] = gain < requests.need[request]
            gain += gains[at]
    order = item_order(gains, forest.owner, urgent, requests.need)[: len(seconds) - 1]
    owner = forest.owner[order]
    items = Items(owner, gains[order], min(urgent.sum(), len(order)))
    taken = best_prefix(items, requests, seconds)
    gain_of = np.zeros(len(requests.need))
    for at in range(taken):
        gain_of[owner[at]] += items.gain[at]
    return nodes[order[:taken]], gain_of


@njit(cache=True)
def _most_probable_first(path: Floats) -> Ints:
    for node in range(1, len(path)):
        if path[node] > path[node - 1]:
            return np.argsort(-path, kind="mergesort")
    return np.arange(len(path))  # already sorted, as in a chain

"""What is verified of a round's drafts, in one compiled call: what they teach, what they are worth
to whom, and the choice."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import PiecewiseLinear
from policies.estimates.acceptance import Proposals, Tables, credit
from policies.flat_trees import FlatTrees
from policies.protocols import Mask
from policies.speculation.forest import Floats, Forest, Ints, forest_of, seconds_by_draft_tokens
from policies.speculation.planner.best_prefix import (
    Choice,
    TimeCaps,
    best_prefix,
    caps_at,
    freely,
    needs_first,
    no_caps,
    objective_of,
    urgent_nodes,
)
from policies.speculation.planner.no_harm import (
    Accounts,
    Trusted,
    caps_of,
    expect,
    power_of,
    trust_of,
    weights_of,
)
from policies.speculation.slo import (
    BatchProgress,
    context_lengths,
    needs_at,
    slo_caps,
    tpot_or_zero,
    without_tpot,
)


class Around(NamedTuple):
    """The round besides its drafts."""

    verify: PiecewiseLinear
    prefill_tokens: int
    room: int
    """Draft tokens that the verification has room for."""
    now: float
    drafting_s: float
    """RoundOverheads included."""
    waiting_s: float
    handling_s: float


class Wish(NamedTuple):
    fair: bool
    """Else the throughput objective, without promises."""
    most_for_need: int


class Chosen(NamedTuple):
    kept: Mask
    """Of all nodes."""
    seconds: float
    """Between two verdicts of a request."""
    needs_over_harm: bool


@njit(cache=True)
def choose(
    rows: Ints,
    standing: BatchProgress,
    flat: FlatTrees,
    proposals: Proposals,
    beliefs: Tables,
    trusted: Trusted,
    accounts: Accounts,
    around: Around,
    wish: Wish,
) -> Chosen:
    """AcceptanceEstimates learn from the drafts; trust and accounts are told what the chosen ones
    promise."""
    promised = forest_of(flat)
    credit(rows, proposals, promised, beliefs)
    trust = trust_of(rows, trusted)
    path = np.empty(len(promised.path))
    for node in range(len(path)):
        path[node] = min(promised.path[node] * trust[promised.owner[node]], 1.0)
    forest = Forest(promised.starts, promised.owner, promised.depth, path)

    read, fixed = context_lengths(standing).sum(), len(rows) + around.prefill_tokens
    most = min(len(path), around.room)
    verify_s = seconds_by_draft_tokens(around.verify, read, fixed, most)
    # Two verdicts of a request lie so far apart, by the number of draft tokens.
    seconds = around.drafting_s + around.waiting_s + verify_s
    plain_s = seconds[0] - around.drafting_s
    bound = without_tpot(standing) if wish.fair else np.zeros(len(rows), np.bool_)
    no_harm = caps_of(rows, bound, plain_s, accounts) if wish.fair else no_caps(len(rows))
    weight, power = weights_of(rows, bound, accounts), power_of(wish.fair, accounts)
    most_for_need = wish.most_for_need
    choice = _choice(standing, forest, power, weight, seconds, around, no_harm, most_for_need)

    nodes = choice.nodes
    kept_s = verify_s[len(nodes)]
    drafts_share = 1.0 - verify_s[0] / kept_s if kept_s > 0.0 else 0.0
    waiting_s, handling_s = around.waiting_s, around.handling_s
    expect(rows, choice.gain, drafts_share, waiting_s, handling_s, accounts.open)
    for row in rows:
        trusted.open[row] = 0.0
    kept = np.zeros(len(path), np.bool_)
    for node in nodes:
        trusted.open[rows[promised.owner[node]]] += promised.path[node]
        kept[node] = True
    return Chosen(kept, choice.seconds, choice.needs_over_harm)


@njit(cache=True)
def _worths_s(standing: BatchProgress) -> Floats:
    """What a token sooner is worth to each."""
    worths_s = np.empty(len(standing.terms))
    for number in range(len(worths_s)):
        worths_s[number] = tpot_or_zero(standing, number)
    return worths_s


@njit(cache=True)
def _choice(
    standing: BatchProgress,
    forest: Forest,
    power: float,
    weight: Floats,
    seconds: Floats,
    around: Around,
    no_harm: TimeCaps,
    most_for_need: int,
) -> Choice:
    begun_s, most = around.now - around.drafting_s, len(seconds) - 1
    gains, free = freely(forest, power, weight, most, seconds, no_harm)
    if without_tpot(standing).all():
        return free
    slo = slo_caps(standing, begun_s)
    if np.all(free.seconds <= caps_at(slo, free.gain)):
        return free
    urgency = needs_at(standing, begun_s + free.seconds)
    urgent, hopeless = urgent_nodes(
        gains,
        urgency,
        needs_at(standing, begun_s + seconds[0]),
        _worths_s(standing),
        (seconds[-1] - seconds[0]) / max(1, most),
        most_for_need,
    )
    slo.offset[hopeless] = np.inf
    ranking = needs_first(gains, urgent, urgency, most)
    value = objective_of(ranking, power, seconds)
    return best_prefix(ranking, value, seconds, slo, no_harm)

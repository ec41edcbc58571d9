"""Simulated rounds: a policy plans, chains are drafted, and a target accepts tokens at random."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.protocols import DraftPlan, LaneBatch, RoundContext, Speculation
from policies.request import RequestView
from policies.tree import DraftTree
from tests.policies.speculation.rounds import Candidate, selected


@dataclass
class Played:
    """The totals of all simulated rounds."""

    seconds: float = 0.0
    plain_s: float = 0.0
    """The time of as many rounds of plain decoding."""
    drafted: dict[str, int] = field(default_factory=dict)


def plan_alone(
    policy: Speculation, batch: Sequence[RequestView], lane: str, context: RoundContext, now: float
) -> DraftPlan:
    """The plan of a round with this lane's requests only."""
    [plan] = policy.plan([LaneBatch(lane, batch)], context, now)
    return plan


def play(
    policy: Speculation,
    batch: Sequence[RequestView],
    accepted: float,
    context: RoundContext,
    rounds: int,
) -> Played:
    """`accepted`: the probability that a draft token is, which is also its confidence."""
    rng = np.random.default_rng(0)
    played = Played(drafted={one.name: 0 for one in batch})
    now = 1.0
    for _ in range(rounds):
        plan = plan_alone(policy, batch, "lane", context, now)
        chains, drafting_s = draft(plan, batch, accepted, context)
        asked = zip(batch, plan.limits, chains, strict=True)
        missing = [one.name for one, limit, length in asked if limit.depth and not length]
        context.acceptance.observe_miss(missing, "lane")
        now += drafting_s
        trees = [DraftTree.chain(list(range(n)), [accepted] * n) for n in chains]
        candidates = [
            Candidate(one, tree, drafting_s, lanes=("lane",))
            for one, tree in zip(batch, trees, strict=True)
        ]
        kept = [int(mask.sum()) for mask in selected(policy, candidates, context, now)]
        read = sum(one.context for one in batch)
        fixed = len(batch) + context.prefill_tokens
        verify_s = context.verify.predict(read, fixed + sum(kept))
        now += verify_s + context.waiting_s
        for one, drafted, verified in zip(batch, chains, kept, strict=True):
            hits = rng.random(verified) < accepted
            one.generated += 1 + (verified if hits.all() else int(np.argmin(hits)))
            played.drafted[one.name] += drafted
        played.seconds += drafting_s + verify_s + context.waiting_s
        played.plain_s += context.verify.predict(read, fixed) + context.waiting_s
    return played


def draft(
    plan: DraftPlan, batch: Sequence[RequestView], accepted: float, context: RoundContext
) -> tuple[list[int], float]:
    """The drafter's loop over chains: the length of each, and the seconds of all steps."""
    length = {one.name: 0 for one in batch}
    going = [
        (one, limit.depth) for one, limit in zip(batch, plan.limits, strict=True) if limit.depth > 0
    ]
    seconds, depth = 0.0, 0
    while going := [(one, limit) for one, limit in going if limit > depth]:
        if plan.rule is not None:
            names = [one.name for one, _ in going]
            path = np.array([accepted**depth] if depth else [], np.float32)
            goes_on = plan.rule(depth, names, [path] * len(names))
            going = [one for one, more in zip(going, goes_on, strict=True) if more]
        if not going:
            break
        if "lane" in context.draft:
            read = sum(one.context + depth for one, _ in going)
            seconds += context.draft["lane"].predict(read, len(going))
        for one, _ in going:
            length[one.name] += 1
        depth += 1
    return [length[one.name] for one in batch], seconds

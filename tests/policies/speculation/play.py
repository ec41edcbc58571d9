"""Simulated rounds: a policy plans, chains are drafted, and a target accepts tokens at random."""

from collections.abc import Callable, Sequence
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
    drafting_s: float = 0.0
    plain_s: float = 0.0
    """The time of as many rounds of plain decoding."""
    tokens: dict[str, int] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    slowest_s: float = 0.0

    def speed(self, request: str, rounds: int) -> float:
        """Tokens per second against plain decoding of the same batch."""
        return self.tokens[request] / self.seconds * self.plain_s / rounds

    @property
    def goodput(self) -> float:
        return sum(self.tokens.values()) / self.seconds


def plan_alone(
    policy: Speculation,
    batch: Sequence[RequestView],
    lane: str,
    context: RoundContext,
    now: float,
) -> DraftPlan:
    """The plan of a round with this lane's requests only."""
    [plan] = policy.plan([LaneBatch(lane, batch)], context, now)
    return plan


Acceptance = Callable[[str, int], float]
"""(request, round) → the probability that a draft token is accepted, which is also its
confidence."""


def play(
    policy: Speculation,
    batch: Sequence[RequestView],
    acceptance: Acceptance,
    context: RoundContext,
    rounds: int,
    seed: int = 0,
) -> Played:
    rng = np.random.default_rng(seed)
    played = Played(tokens={one.name: 0 for one in batch}, drafted={one.name: 0 for one in batch})
    now = 1.0
    for number in range(rounds):
        accepts = {one.name: acceptance(one.name, number) for one in batch}
        plan = plan_alone(policy, batch, "lane", context, now)
        chains, drafting_s = draft(plan, batch, accepts, context)
        asked = zip(batch, plan.limits, chains, strict=True)
        missing = [one.name for one, limit, length in asked if limit.depth and not length]
        context.acceptance.observe_miss(missing, "lane")
        now += drafting_s
        candidates = [
            Candidate(
                one,
                DraftTree.chain(list(range(n)), [accepts[one.name]] * n),
                drafting_s,
                lanes=("lane",),
            )
            for one, n in zip(batch, chains, strict=True)
        ]
        kept = [int(mask.sum()) for mask in selected(policy, candidates, context, now)]
        read = sum(one.context for one in batch)
        fixed = len(batch) + context.prefill_tokens
        verify_s = context.verify.predict(read, fixed + sum(kept))
        plain_s = context.verify.predict(read, fixed) + context.waiting_s
        seconds = drafting_s + verify_s + context.waiting_s
        now += verify_s + context.waiting_s
        for one, drafted, verified in zip(batch, chains, kept, strict=True):
            hits = rng.random(verified) < accepts[one.name]
            accepted = int(np.argmin(hits)) if not hits.all() else verified
            one.generated += accepted + 1
            played.tokens[one.name] += accepted + 1
            played.drafted[one.name] += drafted
        played.seconds += seconds
        played.drafting_s += drafting_s
        played.plain_s += plain_s
        played.slowest_s = max(played.slowest_s, seconds)
    return played


def draft(
    plan: DraftPlan,
    batch: Sequence[RequestView],
    accepts: dict[str, float],
    context: RoundContext,
) -> tuple[list[int], float]:
    """The drafter's loop over chains: the length of each, and the seconds of all steps."""
    length = dict.fromkeys(accepts, 0)
    going = [
        (one, limit.depth) for one, limit in zip(batch, plan.limits, strict=True) if limit.depth > 0
    ]
    seconds, depth = 0.0, 0
    while going := [(one, limit) for one, limit in going if limit > depth]:
        if plan.rule is not None:
            names = [one.name for one, _ in going]
            frontier = [
                np.array([accepts[name] ** depth] if depth else [], np.float32) for name in names
            ]
            goes_on = plan.rule(depth, names, frontier)
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

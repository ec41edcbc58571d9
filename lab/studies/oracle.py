"""Policies that know the simulated target's output, as upper bounds of the others.

`true_goodput` is for lab/studies/selection_oracle.py. `Clairvoyant` drafts as far as it
pays in the present round and verifies only right tokens. It looks at one round alone, so a policy
that looks further can exceed it a little.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.simulator.outputs import DrafterOutput, Target
from benchmarks.simulator.run import Cluster, request_seed
from benchmarks.simulator.workload import Arrival
from lab.studies.selection_oracle import Goodput
from policies.flat_trees import split
from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.request import RequestView
from policies.speculation.forest import draft_room

DEEPEST = 16
"""Draft levels that the oracles consider."""


class Foresight:
    """The target's output and the drafters' proposals of one run."""

    def __init__(self, arrivals: Sequence[Arrival], cluster: Cluster, seed: int) -> None:
        """The arguments of `simulate`."""
        self.arrivals = {arrival.name: arrival for arrival in arrivals}
        self._cluster = cluster
        self._seed = seed
        self._target = Target({arrival.name: arrival.output_tokens for arrival in arrivals})
        self._right: dict[tuple[str, str], list[int]] = {}

    def output(self, request: str) -> list[int]:
        """The target's whole output."""
        return self._target.output(request, request_seed(self._seed, request))

    def right(self, request: str, drafter: str) -> list[int]:
        """At each output position, how many of the drafter's next first choices are right."""
        if (request, drafter) not in self._right:
            arrival = self.arrivals[request]
            output = DrafterOutput(
                self._target,
                self._cluster.acceptance,
                request,
                request_seed(self._seed, request),
                arrival.domain,
                drafter,
            )
            output.extend(arrival.output_tokens + DEEPEST)
            self._right[request, drafter] = output.right
        return self._right[request, drafter]

    def forget(self, request: str) -> None:
        for key in [key for key in self._right if key[0] == request]:
            del self._right[key]


def true_goodput(foresight: Foresight, cluster: Cluster, batch: int) -> Goodput:
    """Tokens per second of a request under a drafter at its best fixed draft depth, in a batch of
    `batch` such requests."""
    costs = {spec.drafter: spec.cost for spec in cluster.drafters}
    computed: dict[tuple[str, str | None], float] = {}

    def replay(request: str, drafter: str | None) -> float:
        arrival = foresight.arrivals[request]
        context = batch * (arrival.prompt_tokens + arrival.output_tokens / 2)
        best = 1.0 / cluster.verify.predict(context, batch)
        if drafter is None:
            return best
        cost = costs[drafter]
        step_s = 0.0 if cost is None else cost.predict(context, batch)
        right = foresight.right(request, drafter)
        for depth in range(1, DEEPEST + 1):
            seconds = depth * step_s + cluster.verify.predict(context, batch * (1 + depth))
            rounds = _rounds(right, arrival.output_tokens, depth)
            best = max(best, arrival.output_tokens / rounds / seconds)
        return best

    def goodput(request: str, drafter: str | None) -> float:
        if (request, drafter) not in computed:
            computed[request, drafter] = replay(request, drafter)
        return computed[request, drafter]

    return goodput


def _rounds(right: Sequence[int], tokens: int, depth: int) -> int:
    rounds = position = 0
    while position < tokens:
        position += min(right[position], depth) + 1
        rounds += 1
    return rounds


class Clairvoyant:
    """Maximises the throughput of the present round; chains only."""

    def __init__(self, foresight: Foresight, cluster: Cluster) -> None:
        self._foresight = foresight
        self._drafters: Mapping[str, str] = {spec.lane: spec.drafter for spec in cluster.drafters}

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return [
            self._plan(batch.lane, batch.requests, context)
            if batch.lane
            else DraftPlan.plain(batch)
            for batch in batches
        ]

    def _plan(self, lane: str, batch: Sequence[RequestView], context: RoundContext) -> DraftPlan:
        right = [self._right(view, self._drafters[lane]) for view in batch]
        context_tokens = sum(view.context for view in batch)
        draft = context.draft.get(lane)
        best, best_depth, drafting_s = 0.0, 0, 0.0
        for depth in range(max(right, default=0) + 1):
            drafting = [v.context for v, run in zip(batch, right, strict=True) if run >= depth]
            if depth and draft is not None:
                drafting_s += draft.predict(sum(drafting), len(drafting))
            tokens = len(batch) + sum(min(run, depth) for run in right)
            rows = tokens + context.prefill_tokens
            verify_s = context.verify.predict(context_tokens, rows)
            seconds = drafting_s + verify_s + context.waiting_s
            if tokens / seconds > best:
                best, best_depth = tokens / seconds, depth
        return DraftPlan([DraftLimit(min(run, best_depth)) for run in right])

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        """The right nodes, shallow ones first where the budget binds."""
        mask = np.zeros(len(candidates.trees.tokens), np.bool_)
        trees, starts = split(candidates.trees), candidates.trees.starts.tolist()
        paths = [
            tree.follow(self._ahead(view))
            for tree, view in zip(trees, candidates.requests, strict=True)
        ]
        left = draft_room(len(candidates), context)
        for level in range(max(map(len, paths), default=0)):
            for start, path in zip(starts, paths, strict=False):
                if left > 0 and level < len(path):
                    mask[start + path[level]] = True
                    left -= 1
        return mask

    def forget(self, request: str) -> None:
        self._foresight.forget(request)

    def _right(self, view: RequestView, drafter: str) -> int:
        most = min(DEEPEST, view.max_tokens - view.generated - 1)
        return min(self._foresight.right(view.name, drafter)[view.generated], most)

    def _ahead(self, view: RequestView) -> list[int]:
        return self._foresight.output(view.name)[view.generated : view.generated + DEEPEST]

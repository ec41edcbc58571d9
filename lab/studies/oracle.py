"""Policies that know the simulated target's output, as upper bounds of the others.

`true_goodput` is for lab/studies/selection_oracle.py, `Foresight` for lab/papers/srpt.py.
"""

from collections.abc import Sequence

from cluster.plan.simulator.outputs import DrafterOutput, Target
from cluster.plan.simulator.run import Cluster, request_seed
from cluster.plan.simulator.workload import Arrival
from lab.studies.selection_oracle import Goodput

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

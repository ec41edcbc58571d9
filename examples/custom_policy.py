"""A selection policy of your own, tried in the simulator against a built-in one.

    python -m examples.custom_policy

Run it from the repository's root. The protocol is in policies/protocols.py.
"""

from collections.abc import Mapping, Sequence

from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.hardware import A100, Shape, roofline
from cluster.plan.simulator.run import Cluster, DrafterSpec, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Lengths, draw
from policies.catalogue import make_schedule, make_selection, make_speculation
from policies.protocols import RoundContext, Selection
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.fixed import Fixed

SMALL, LARGE = Shape(68e6, 2, 768, 768), Shape(6.74e9, 32, 4096, 4096)
"""A drafter and a target in the sizes of Llama 68M and 7B."""


class LeaveBadDrafters(Fixed):
    """Every request starts on the first lane and moves on after three rounds without acceptance."""

    def __init__(self) -> None:
        super().__init__()
        self._place: dict[str, int] = {}
        self._misses: dict[str, int] = {}

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        place = self._place  # ignores capacities: each lane below holds every request
        return {one.name: lanes[place.get(one.name, 0) % len(lanes)].name for one in requests}

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for one in outcomes:
            missed = one.drafted > 0 and one.accepted == 0
            self._misses[one.request] = missed * (self._misses.get(one.request, 0) + 1)
            if self._misses[one.request] == 3:
                self._place[one.request] = self._place.get(one.request, 0) + 1
                self._misses[one.request] = 0


def goodput(selection: Selection) -> float:
    """Tokens per second of 200 requests of two domains, each with a drafter of its own."""
    pairs = {(domain, name): 0.8 if domain == name else 0.2 for domain in "ab" for name in "ab"}
    lanes = [DrafterSpec(name, name, roofline(SMALL, A100), capacity=32) for name in "ab"]
    accepted = Acceptance({pair: synthetic(share) for pair, share in pairs.items()})
    cluster = Cluster(roofline(LARGE, A100), KvMemory(100_000), lanes, accepted)
    arrivals = draw([0.1 * number for number in range(200)], 0, Lengths(longest=512), domains="ab")
    policies = Policies(make_schedule("fcfs"), selection, make_speculation("fixed"))
    limits = Limits(max_batch=32, max_waiting=200, kv_tokens=100_000)
    return simulate(arrivals, cluster, lambda _calibrations: policies, limits, clients=16).goodput


if __name__ == "__main__":
    print(f"fixed: {goodput(make_selection('fixed')):.0f} tokens/s")
    print(f"leave bad drafters: {goodput(LeaveBadDrafters()):.0f} tokens/s")

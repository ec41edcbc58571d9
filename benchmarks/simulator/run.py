"""Runs the real coordinator, in virtual time, over simulated hosts: a workload in, a report out.

The same arguments give the same run to the last event.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.request_state import Overloaded
from actors.coordinator.settings import Lane, Limits, Policies
from benchmarks.simulator import clock
from benchmarks.simulator.acceptance import Acceptance
from benchmarks.simulator.device import NO_FAULTS, Faults
from benchmarks.simulator.drafter import SimulatedDrafter
from benchmarks.simulator.randomness import generator
from benchmarks.simulator.report import Report, Served, Tally
from benchmarks.simulator.scripts import Target
from benchmarks.simulator.verifier import KvMemory, SimulatedVerifier
from benchmarks.simulator.workload import Arrival
from engine.sampling.params import SamplingParams
from policies.catalogue import Calibrations
from policies.cost import CostModel
from policies.microbatch import MicroBatchParams
from policies.request import LaneView

_CHUNK = 512
"""Tokens of one catch-up forward, by which its cost per token is told to policies."""


_PIPELINE = MicroBatchParams()

MakePolicies = Callable[[Calibrations], Policies]
"""Fresh policies for a run; they may read what its coordinator learns of confidences."""


class WrongOutput(Exception):
    """A request got other tokens than its target says: a defect of the code under test."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    lane: str
    drafter: str
    """Names its acceptance; several lanes may run the same one."""
    cost: CostModel | None
    """Of one forward. None: a lookup, which costs nothing and drafts for every request."""
    capacity: int = 1 << 20
    size: float = 0.0
    """Parameters."""
    faults: Faults = NO_FAULTS
    call_s: float = 0.0
    """What a call takes besides its forwards; of a lookup, all of it, and the coordinator with
    it."""
    apart: bool = True
    """Its drafter computes on a device of its own, not on the verifier's: it may read all the
    time."""

    @property
    def view(self) -> LaneView:
        catch_up_s = 0.0 if self.cost is None else self.cost.predict(0, _CHUNK) / _CHUNK
        return LaneView(self.lane, self.drafter, self.capacity, self.size, catch_up_s)


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Of the coordinator's process, behind each forward; everything else waits for it."""

    round_s: float = 0.0
    drafting_s: float = 0.0
    """More of it, where somebody was asked for drafts."""


NO_TIME = OwnTime()


@dataclass(frozen=True, slots=True)
class Cluster:
    """One replica."""

    verify: CostModel
    memory: KvMemory
    drafters: Sequence[DrafterSpec]
    acceptance: Acceptance
    verify_budget: int = 512
    draft_budget: int = 512
    most_tokens: int = 512
    trees: bool = True
    """Whether the verifier takes trees; vLLM takes chains only."""
    transport_s: float = 0.0
    """Of one call to a host, there and back."""
    scatters: bool = False
    """That, and `call_s`: exponentially, around their means."""
    verifier_faults: Faults = NO_FAULTS
    own: OwnTime = NO_TIME


def simulate(
    arrivals: Sequence[Arrival],
    cluster: Cluster,
    make_policies: MakePolicies,
    limits: Limits,
    *,
    clients: int | None = None,
    pipeline: MicroBatchParams = _PIPELINE,
    seed: int = 0,
    observe: Callable[[Event], None] = lambda _event: None,
) -> Report:
    """Each request at its time; or, with `clients`, as soon as one of so many has got its last
    answer. Raises WrongOutput."""
    tally = Tally()

    def observe_all(event: Event) -> None:
        tally.observe(event)
        observe(event)
        if isinstance(event, Verified):
            tried = any(outcome.tried for outcome in event.outcomes)
            clock.spend(cluster.own.round_s + (cluster.own.drafting_s if tried else 0.0))

    target = Target({arrival.name: arrival.output_tokens for arrival in arrivals})

    async def serve() -> list[Served | None]:
        estimates = _estimates(cluster)
        coordinator = Coordinator(
            _verifier(cluster, target, arrivals, seed),
            _lanes(cluster, target, arrivals, seed),
            make_policies(estimates.calibrations),
            estimates,
            limits,
            pipeline,
            observe_all,
        )
        users = _Users(coordinator, target, seed)
        if clients is None:
            served = await users.in_time(arrivals)
        else:
            served = await users.in_turn(arrivals, clients)
        await coordinator.close()
        return served

    served = [one for one in clock.run(serve()) if one is not None]
    return Report(served, refused=len(arrivals) - len(served), tally=tally)


class _Users:
    """Send requests and read their streams."""

    def __init__(self, coordinator: Coordinator, target: Target, seed: int) -> None:
        self._coordinator = coordinator
        self._target = target
        self._seed = seed
        self._clock = asyncio.get_running_loop().time

    async def in_time(self, arrivals: Sequence[Arrival]) -> list[Served | None]:
        """Open loop. None: refused."""
        readers = []
        for arrival in sorted(arrivals, key=lambda one: one.at_s):
            await asyncio.sleep(arrival.at_s - self._clock())
            readers.append(asyncio.create_task(self._serve(arrival)))
        return await asyncio.gather(*readers)

    async def in_turn(self, arrivals: Sequence[Arrival], clients: int) -> list[Served | None]:
        """Closed loop."""
        waiting = iter(arrivals)

        async def client() -> list[Served | None]:
            return [await self._serve(arrival) for arrival in waiting]

        served = await asyncio.gather(*(client() for _ in range(clients)))
        return [one for of_client in served for one in of_client]

    async def _serve(self, arrival: Arrival) -> Served | None:
        begun = self._clock()
        seed = request_seed(self._seed, arrival.name)
        try:
            stream = self._coordinator.submit(
                arrival.name,
                [1] * arrival.prompt_tokens,
                SamplingParams(max_tokens=arrival.max_tokens, seed=seed),
                slo=arrival.slo,
                priority=arrival.priority,
                tenant=arrival.tenant,
            )
        except Overloaded:
            return None
        if arrival.predicted_tokens is not None:
            self._coordinator.predict(arrival.name, arrival.predicted_tokens)
        first_token_s = 0.0
        got: list[int] = []
        async for commit in stream:
            if not got:
                first_token_s = self._clock()
            got += commit.token_ids
        if got != self._target.output(arrival.name, seed)[: arrival.max_tokens]:
            raise WrongOutput(f"request {arrival.name!r}")
        return Served(arrival, begun, first_token_s, self._clock(), len(got))


def request_seed(seed: int, request: str) -> int:
    """Its sampling seed in the run of this seed."""
    return int(generator(seed, request).integers(2**63))


def _verifier(
    cluster: Cluster, target: Target, arrivals: Sequence[Arrival], seed: int
) -> SimulatedVerifier:
    return SimulatedVerifier(
        cluster.verify,
        target,
        max_context=max(arrival.prompt_tokens + arrival.max_tokens for arrival in arrivals),
        memory=cluster.memory,
        trees=cluster.trees,
        transport_s=cluster.transport_s,
        faults=cluster.verifier_faults,
        draws=generator(seed, "to the verifier") if cluster.scatters else None,
    )


def _lanes(cluster: Cluster, target: Target, arrivals: Sequence[Arrival], seed: int) -> list[Lane]:
    domains = {arrival.name: arrival.domain for arrival in arrivals}
    return [
        Lane(
            spec.view,
            SimulatedDrafter(
                spec.drafter,
                spec.cost,
                target,
                cluster.acceptance,
                domains,
                transport_s=spec.call_s + (0.0 if spec.cost is None else cluster.transport_s),
                faults=spec.faults,
                draws=generator(seed, "to", spec.lane) if cluster.scatters else None,
            ),
            free=spec.cost is None,
            apart=spec.apart,
        )
        for spec in cluster.drafters
    ]


def _estimates(cluster: Cluster) -> Estimates:
    """Policies are told the true costs, as a perfect profile would."""
    draft = {spec.lane: spec.cost for spec in cluster.drafters if spec.cost is not None}
    costs = Costs(
        cluster.verify,
        draft,
        cluster.verify_budget,
        cluster.draft_budget,
        cluster.most_tokens,
        cluster.trees,
    )
    return Estimates(costs, [spec.view for spec in cluster.drafters])

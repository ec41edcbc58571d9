"""Runs the real coordinator in virtual time over simulated hosts.

The same arguments give the same run, to the last event.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.coordinator.stream import Overloaded
from cluster.plan.simulator import clock
from cluster.plan.simulator.acceptance import Acceptance
from cluster.plan.simulator.device import NO_FAULTS, Faults
from cluster.plan.simulator.drafter import SimulatedDrafter
from cluster.plan.simulator.outputs import Target
from cluster.plan.simulator.randomness import generator
from cluster.plan.simulator.run_report import FinishedRequest, Report, Tally
from cluster.plan.simulator.verifier import KvMemory, SimulatedVerifier
from cluster.plan.simulator.workload import Arrival
from engine.sampling.params import SamplingParams
from policies.catalogue import (
    SPECULATIONS,
    Calibrations,
    Speculations,
    make_schedule,
    make_selection,
    make_speculation,
)
from policies.cost import NO_SWITCH, CostModel, SwitchCost
from policies.microbatch import MicroBatchParams
from policies.request import LaneView

_CHUNK = 512
"""Tokens of one catch-up forward, from which its cost per token is derived."""

_PIPELINE = MicroBatchParams()

MakePolicies = Callable[[Calibrations], Policies]
"""New policies for a run, given the calibrations that its coordinator learns."""


def named_policies(
    speculation: str,
    selection: str,
    schedule: str = "default",
    *,
    speculation_options: Mapping[str, object] | None = None,
    speculations: Speculations = SPECULATIONS,
) -> MakePolicies:
    """Policies by their names in policies/catalogue.py, or in `speculations`."""

    def make(calibrations: Calibrations) -> Policies:
        return Policies(
            make_schedule(schedule),
            make_selection(selection),
            make_speculation(speculation, speculation_options, calibrations, speculations),
        )

    return make


class WrongOutput(Exception):
    """A request's tokens are not its target's output: a defect of the code under test."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    lane: str
    drafter: str
    """Selects its acceptance model; several lanes may run the same drafter."""
    cost: CostModel | None
    """The cost of one forward; None: a lookup, which has none and drafts for every request."""
    capacity: int = 1 << 20
    budget: int = 512
    """AdaServe's B_2: tokens of a draft step."""
    faults: Faults = NO_FAULTS
    call_s: float = 0.0
    """Time of a call besides its forwards; of a lookup, which runs in the coordinator, all of
    it."""
    apart: bool = True
    """Whether it has a device of its own instead of the verifier's, so that it can always catch
    up."""

    @property
    def view(self) -> LaneView:
        catch_up_s = 0.0 if self.cost is None else self.cost.predict(0, _CHUNK) / _CHUNK
        return LaneView(self.lane, self.drafter, self.capacity, catch_up_s)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One replica: target, drafters, and their costs and faults."""

    verify: CostModel
    memory: KvMemory
    drafters: Sequence[DrafterSpec]
    acceptance: Acceptance
    verify_budget: int = 512
    most_tokens: int = 512
    trees: bool = True
    """Whether the verifier takes trees; vLLM takes chains only."""
    rereads: bool = False
    """Whether each draft token of a verification reads its request's whole context once more, as in
    an engine that verifies drafts as sequences of their own (SpecServe, eq. 6)."""
    assumed_verify: CostModel | None = None
    """The cost model of a verification that policies are given; None: `verify`."""
    transport_s: float = 0.0
    """Round trip of one call to a host."""
    own_s: SwitchCost = NO_SWITCH
    """What the coordinator itself takes of a round: fixed, and for each request."""
    verifier_faults: Faults = NO_FAULTS


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
    """Serves each request at its time, or, with `clients`, in a closed loop of so many clients.
    Raises WrongOutput."""
    tally = Tally()

    def observe_all(event: Event) -> None:
        tally.observe(event)
        observe(event)

    target = Target({arrival.name: arrival.output_tokens for arrival in arrivals})

    async def serve() -> list[FinishedRequest | None]:
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
        load = _Load(coordinator, target, seed)
        if clients is None:
            served = await load.open_loop(arrivals)
        else:
            served = await load.closed_loop(arrivals, clients)
        await coordinator.close()
        return served

    served = [request for request in clock.run(serve()) if request is not None]
    return Report(served, refused=len(arrivals) - len(served), tally=tally)


class _Load:
    """Sends requests and reads their streams; None stands for a request that is not admitted."""

    def __init__(self, coordinator: Coordinator, target: Target, seed: int) -> None:
        self._coordinator = coordinator
        self._target = target
        self._seed = seed
        self._clock = asyncio.get_running_loop().time

    async def open_loop(self, arrivals: Sequence[Arrival]) -> list[FinishedRequest | None]:
        readers = []
        for arrival in sorted(arrivals, key=lambda arrival: arrival.at_s):
            await asyncio.sleep(arrival.at_s - self._clock())
            readers.append(asyncio.create_task(self._serve(arrival)))
        return await asyncio.gather(*readers)

    async def closed_loop(
        self, arrivals: Sequence[Arrival], clients: int
    ) -> list[FinishedRequest | None]:
        waiting = iter(arrivals)

        async def client() -> list[FinishedRequest | None]:
            return [await self._serve(arrival) for arrival in waiting]

        served = await asyncio.gather(*(client() for _ in range(clients)))
        return [request for of_client in served for request in of_client]

    async def _serve(self, arrival: Arrival) -> FinishedRequest | None:
        started = self._clock()
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
        received: list[int] = []
        async for commit in stream:
            if not received:
                first_token_s = self._clock()
            received += commit.token_ids
        if received != self._target.output(arrival.name, seed)[: arrival.max_tokens]:
            raise WrongOutput(f"request {arrival.name!r}")
        return FinishedRequest(arrival, started, first_token_s, self._clock(), len(received))


def request_seed(seed: int, request: str) -> int:
    """Its sampling seed in the run with this seed."""
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
        rereads=cluster.rereads,
        transport_s=cluster.transport_s,
        own_s=cluster.own_s,
        faults=cluster.verifier_faults,
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
            ),
            always_drafts=spec.cost is None,
            own_processors=spec.apart,
        )
        for spec in cluster.drafters
    ]


def _estimates(cluster: Cluster) -> Estimates:
    """The true costs, as of a perfect profile, unless `assumed_verify` is given."""
    draft = {spec.lane: spec.cost for spec in cluster.drafters if spec.cost is not None}
    costs = Costs(
        cluster.assumed_verify or cluster.verify,
        draft,
        cluster.verify_budget,
        {spec.lane: spec.budget for spec in cluster.drafters if spec.cost is not None},
        cluster.most_tokens,
        cluster.trees,
    )
    return Estimates(costs, [spec.view for spec in cluster.drafters])

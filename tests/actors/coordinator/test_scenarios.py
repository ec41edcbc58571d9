"""In random scenarios every stream is the target's output, and no KV is left behind.

They run in virtual time over simulated hosts: requests arrive, are cancelled, are read slowly or
not at all, are preempted and swapped; hosts are lost; policies are replaced.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.coordinator.stream import Cancelled, Overloaded, RequestFailed, Stream
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.clock import VirtualTimeLoop
from cluster.plan.simulator.device import Faults
from cluster.plan.simulator.drafter import SimulatedDrafter
from cluster.plan.simulator.outputs import Target
from cluster.plan.simulator.verifier import KvMemory, SimulatedVerifier
from engine.sampling.params import SamplingParams
from policies.catalogue import (
    SCHEDULES,
    SELECTIONS,
    SPECULATIONS,
    fair,
    make_schedule,
    make_selection,
    make_speculation,
)
from policies.cost import ForwardCost
from policies.microbatch import MicroBatchParams
from policies.request import LaneView, Slo

T = TypeVar("T")
LONGEST = 160
KV_TOKENS = 400
OUTPUTS = {f"r{number}": 1 + (37 * number) % 90 for number in range(60)}
DRAFT = ForwardCost(alpha=1e-8, gamma=1e-6, delta=0.001)
names = st.sampled_from(sorted(OUTPUTS))
picks = st.integers(0, 9)
times = st.lists(st.floats(0.01, 3.0), max_size=3)


@dataclass
class Reader:
    """A client that can stop reading for a while."""

    stream: Stream
    seed: int
    max_tokens: int
    reads: asyncio.Event
    tokens: list[int] = field(default_factory=list)
    cancelled: bool = False
    stalled: bool = False
    failed: bool = False
    done: bool = False

    async def run(self) -> None:
        try:
            async for commit in self.stream:
                assert commit.first_index == len(self.tokens)
                self.tokens += commit.token_ids
                await self.reads.wait()
        except Cancelled:
            assert self.cancelled or self.stalled
        except RequestFailed:
            self.failed = True
        self.done = True


class Scenarios(RuleBasedStateMachine):
    @initialize(
        max_batch=st.integers(1, 4),
        parts=st.sampled_from([None, 1, 2]),
        lane_dies=times,
        verifier_dies=times,
        swaps=st.booleans(),
    )
    def start(
        self,
        max_batch: int,
        parts: int | None,
        lane_dies: list[float],
        verifier_dies: list[float],
        swaps: bool,
    ) -> None:
        self.loop = VirtualTimeLoop()
        self.verifier_deaths = len(verifier_dies)
        self.target = Target(OUTPUTS)
        self.readers: dict[str, Reader] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.limits = Limits(
            max_batch=max_batch,
            max_waiting=6,
            kv_tokens=KV_TOKENS,
            forward_tokens=32,
            unread_tokens=12,
            stalled_s=2.0,
        )
        self.verifier = SimulatedVerifier(
            ForwardCost(alpha=1e-7, gamma=1e-5, delta=0.02, knee=64, gamma_more=2e-4),
            self.target,
            max_context=LONGEST,
            memory=KvMemory(KV_TOKENS, 1e-6 if swaps else None),
            faults=Faults(verifier_dies, recovery_s=0.1),
        )
        drafters = {"small": DRAFT, "large": DRAFT, "ngram": None}
        acceptance = Acceptance({("", name): synthetic(0.7) for name in drafters})
        domains = dict.fromkeys(OUTPUTS, "")
        faults = {"small": Faults(lane_dies, recovery_s=0.2)}
        self.lanes = [
            Lane(
                LaneView(name, name, capacity=2),
                SimulatedDrafter(
                    name, cost, self.target, acceptance, domains, faults=faults.get(name, Faults())
                ),
                always_drafts=cost is None,
            )
            for name, cost in drafters.items()
        ]
        draft = {lane.view.name: DRAFT for lane in self.lanes if not lane.always_drafts}
        costs = Costs(
            ForwardCost(1e-7, 1e-5, 0.02),
            draft,
            verify_budget=24,
            draft_budgets=dict.fromkeys(draft, 16),
            most_tokens=24,
        )
        self.estimates = Estimates(costs, [lane.view for lane in self.lanes])
        policies = self._policies("default", "hedge", "planner")
        pipeline = MicroBatchParams(parts=parts)
        self.coordinator = self.on_loop(
            lambda: Coordinator(
                self.verifier, self.lanes, policies, self.estimates, self.limits, pipeline
            )
        )

    def on_loop(self, act: Callable[[], T]) -> T:
        async def acting() -> T:
            return act()

        return self.loop.run_until_complete(acting())

    def _policies(self, schedule: str, selection: str, speculation: str) -> Policies:
        return Policies(
            fair(make_schedule(schedule)),
            make_selection(selection),
            make_speculation(speculation, calibrations=self.estimates.calibrations),
        )

    @rule(
        name=names,
        prompt_len=st.integers(1, 60),
        max_tokens=st.integers(1, 100),
        seed=st.integers(0, 3),
        slo=st.sampled_from([Slo(), Slo(tpot_s=0.01), Slo(tpot_s=0.05)]),
        priority=st.integers(0, 1),
        speculate=st.booleans(),
    )
    def submit(
        self, name: str, prompt_len: int, max_tokens: int, seed: int, **options: Any
    ) -> None:
        if name in self.readers:
            return

        def submit() -> None:
            params = SamplingParams(max_tokens=max_tokens, seed=seed)
            try:
                stream = self.coordinator.submit(name, [1] * prompt_len, params, **options)
            except Overloaded:
                return
            reads = asyncio.Event()
            reads.set()
            reader = self.readers[name] = Reader(stream, seed, max_tokens, reads)
            self.tasks.append(asyncio.create_task(reader.run()))

        self.on_loop(submit)

    @rule(seconds=st.floats(0.001, 1.5))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @precondition(lambda self: self.readers)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        name, reader = self._picked(pick)
        reader.cancelled = True
        self.on_loop(lambda: self.coordinator.cancel(name))

    @precondition(lambda self: self.readers)
    @rule(pick=picks)
    def stop_reading(self, pick: int) -> None:
        _, reader = self._picked(pick)
        reader.stalled = True
        reader.reads.clear()

    @precondition(lambda self: self.readers)
    @rule(pick=picks)
    def read_again(self, pick: int) -> None:
        self._picked(pick)[1].reads.set()

    def _picked(self, pick: int) -> tuple[str, Reader]:
        return list(self.readers.items())[-1 - pick % len(self.readers)]

    @rule(
        schedule=st.sampled_from(sorted(SCHEDULES)),
        selection=st.sampled_from(sorted(SELECTIONS)),
        speculation=st.sampled_from(sorted(SPECULATIONS)),
        parts=st.sampled_from([None, 1, 2]),
    )
    def change_policies(
        self, schedule: str, selection: str, speculation: str, parts: int | None
    ) -> None:
        policies = self._policies(schedule, selection, speculation)
        self.on_loop(lambda: self.coordinator.use(policies, MicroBatchParams(parts=parts)))

    @invariant()
    def no_request_is_far_ahead_of_its_reader(self) -> None:
        for reader in getattr(self, "readers", {}).values():
            # One more verdict may come while the request is within a round.
            assert reader.stream.unread_tokens <= self.limits.unread_tokens + 10

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for reader in self.readers.values():
            reader.reads.set()
        self.loop.run_until_complete(asyncio.sleep(120))
        for name, reader in self.readers.items():
            expected = self.target.output(name, reader.seed)[: reader.max_tokens]
            assert reader.done, f"{name} hangs"
            assert reader.tokens == expected[: len(reader.tokens)]
            if not (reader.cancelled or reader.stalled or reader.failed):
                assert reader.tokens == expected
        # Only who was alone aboard a second loss is taken for its cause.
        failed = sum(reader.failed for reader in self.readers.values())
        assert failed <= max(0, self.verifier_deaths - 1)
        assert self.verifier.used_blocks == 0
        assert self.coordinator.alive
        self.loop.run_until_complete(self.coordinator.close())
        for task in self.tasks:
            task.result()
        self.loop.close()


TestScenarios = Scenarios.TestCase
TestScenarios.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

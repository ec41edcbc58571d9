"""Losslessness on the real zoo through the coordinator: each policy alone and every pair together.

Worth its time: it is the only place where real drafters, the real target and real timing meet
every policy. The streams of the first case are compared with the reference (grade F); the output
is a function of prompt, seed and parameters alone, so all others must repeat them.
"""

import asyncio
import itertools

import pytest
import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.hosts.fleet import Fleet, start_fleet
from cluster.config import DrafterConfig, TargetConfig
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
from policies.microbatch import MicroBatchParams
from tests.engine.streams import questions, reference_target
from tests.identity import assert_identical
from tests.pairwise import Case, covering, one_at_a_time

PIPELINES = {"searched": MicroBatchParams(), "halves": MicroBatchParams(parts=2)}
FACTORS = {
    "selection": ("hedge", *(name for name in SELECTIONS if name != "hedge")),
    "speculation": ("planner", *(name for name in SPECULATIONS if name != "planner")),
    "schedule": ("default", *(name for name in SCHEDULES if name != "default")),
    "pipeline": tuple(PIPELINES),
}
KV_TOKENS = 2048
LIMITS = Limits(max_batch=3, max_waiting=8, kv_tokens=KV_TOKENS)
"""Fewer slots than requests: some wait, and some schedules preempt."""
MAX_TOKENS = 20
Streams = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    torch.set_num_threads(1)
    target = TargetConfig(dtype="float32", kv_tokens=KV_TOKENS, placement="inline")
    drafters = [
        DrafterConfig(name="tiny", model="zoo/tiny", placement="inline", max_batch=2),
        DrafterConfig(name="tasks", model="zoo/tasks", placement="inline", max_batch=2),
        DrafterConfig(name="ngram", kind="ngram"),
    ]
    return asyncio.run(start_fleet(target, drafters, tmp_path_factory.mktemp("profiles")))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return questions(shared=False)[:5]


@pytest.fixture(scope="module")
def expected(fleet: Fleet, prompts: list[list[int]]) -> Streams:
    """The streams of the first case, checked against the reference."""
    streams, _ = asyncio.run(served(fleet, one_at_a_time(FACTORS)[0], prompts))
    stops = fleet.verifier.limits.stop_token_ids
    own = [params(seed, stops) for seed in range(len(prompts))]
    assert_identical(reference_target(), prompts, streams, own)
    return streams


def params(seed: int, stops: tuple[int, ...] = ()) -> SamplingParams:
    """Greedy and sampled by turns."""
    return SamplingParams(
        temperature=float(seed % 2), max_tokens=MAX_TOKENS, seed=seed, stop_token_ids=stops
    )


_names = itertools.count()


async def served(fleet: Fleet, case: Case, prompts: list[list[int]]) -> tuple[Streams, list[Event]]:
    events: list[Event] = []
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        Policies(
            fair(make_schedule(case["schedule"])),
            make_selection(case["selection"], seed=1),
            make_speculation(case["speculation"], calibrations=estimates.calibrations),
        ),
        estimates,
        LIMITS,
        PIPELINES[case["pipeline"]],
        events.append,
    )

    async def stream(seed: int, prompt: list[int]) -> tuple[int, ...]:
        commits = coordinator.submit(str(next(_names)), prompt, params(seed))
        return tuple([token async for commit in commits for token in commit.token_ids])

    streams = await asyncio.gather(*(stream(*one) for one in enumerate(prompts)))
    await coordinator.close()
    return list(streams), events


CASES = [*one_at_a_time(FACTORS), *covering(FACTORS)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
def test_every_policy_returns_the_target_s_output(
    fleet: Fleet, prompts: list[list[int]], expected: Streams, case: Case
) -> None:
    streams, events = asyncio.run(served(fleet, case, prompts))
    assert streams == expected
    if case["speculation"] == "fixed":
        rounds = [o for event in events if isinstance(event, Verified) for o in event.outcomes]
        assert any(outcome.accepted for outcome in rounds), "nothing was drafted"

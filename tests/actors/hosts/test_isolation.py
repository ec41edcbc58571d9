"""A request that makes a batch raise fails alone, wherever it raises: all other streams equal those
of a run without it. On the real zoo."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Left
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits
from actors.coordinator.stream import RequestFailed
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.protocol import HostLost
from cluster.config import DrafterConfig, TargetConfig
from cluster.plan.simulator.run import named_policies
from engine.drafters.lookup import NgramDrafter, SuffixDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import SpindleError
from engine.kv.cache import KVCache
from engine.model import PackedModel
from engine.protocol import Prefix, Start, VerifyOrder
from engine.request import ServedRequest
from engine.sampling.params import SamplingParams
from engine.soft_state import EMPTY_HASH
from engine.verifiers.native import NativeVerifier
from policies.tree import DraftTree
from tests.engine.streams import questions

KV_TOKENS = 4096
POISON = "poison"
LIMITS = Limits(max_batch=10, max_waiting=8, kv_tokens=KV_TOKENS, forward_tokens=64)
"""Prompts enter in pieces, so that orders of all kinds are in one batch."""
Patch = pytest.MonkeyPatch
Stream = tuple[int, ...]


class Defect(Exception):
    """An internal error: /srv/secret/path."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    torch.set_num_threads(1)
    target = TargetConfig(dtype="float32", kv_tokens=KV_TOKENS, placement="inline")
    drafters = [
        DrafterConfig(name="tiny", model="zoo/tiny", placement="inline"),
        DrafterConfig(name="ngram", kind="ngram"),
        DrafterConfig(name="suffix", kind="suffix"),
    ]
    return asyncio.run(start_fleet(target, drafters, tmp_path_factory.mktemp("profiles")))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return questions(shared=False)


@pytest.fixture(scope="module")
def expected(fleet: Fleet, prompts: list[list[int]]) -> list[Stream]:
    streams, _ = asyncio.run(served(fleet, prompts))
    assert all(isinstance(stream, tuple) for stream in streams)
    return streams  # type: ignore[return-value]  # just asserted


_numbers = itertools.count()


async def served(
    fleet: Fleet, prompts: list[list[int]], poisons: int = 0
) -> tuple[list[Stream | SpindleError], list[Event]]:
    """The healthy streams, then those of the poisons, which are submitted in between, then one that
    is submitted last."""
    events: list[Event] = []
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    coordinator = Coordinator(
        fleet.verifier,
        fleet.lanes,
        named_policies("fixed", "hedge")(estimates.calibrations),
        estimates,
        LIMITS,
        observe=events.append,
    )

    async def stream(name: str, seed: int, prompt: list[int]) -> Stream | SpindleError:
        params = SamplingParams(temperature=float(seed % 2), max_tokens=24, seed=seed)
        commits = coordinator.submit(f"{name}-{next(_numbers)}", prompt, params)
        try:
            return tuple([token async for commit in commits for token in commit.token_ids])
        except SpindleError as error:
            return error

    healthy = [stream("healthy", *one) for one in enumerate(prompts)]
    poisonous = [stream(POISON, seed, prompts[seed]) for seed in range(poisons)]
    half = len(healthy) // 2
    streams = await asyncio.gather(*healthy[:half], *poisonous, *healthy[half:])
    assert coordinator.alive
    again = await stream("after", 0, prompts[0])
    while (await fleet.verifier.kv_state()).used:
        await asyncio.sleep(0.01)  # hosts drop requests after they have left
    await coordinator.close()
    poisoned = streams[half : half + poisons]
    return [*streams[:half], *streams[half + poisons :], *poisoned, again], events


class Fault(NamedTuple):
    """A method that raises where a call is about a poison."""

    owner: type
    method: str
    names: Callable[..., Sequence[str]]
    """The requests of a call."""
    late: bool = False
    """Raises only after the work is done."""

    def arise(self, patch: Patch) -> None:
        original = getattr(self.owner, self.method)

        def poisoned(*arguments: Any) -> Any:
            about_poison = any(POISON in name for name in self.names(*arguments))
            if about_poison and not self.late:
                raise Defect
            answer = original(*arguments)
            if about_poison:
                raise Defect
            return answer

        patch.setattr(self.owner, self.method, poisoned)


def is_targets(kv: KVCache) -> bool:
    """Drafters run on the same classes."""
    return kv.shape.layers == 4


def in_the_middle(_self: NativeVerifier, work: Any, *_: object) -> list[str]:
    return [work.request] if work.held.committed.ids[work.held.start.prompt_len + 6 :] else []


def of_the_target(model: PackedModel, segments: Sequence[Any], *_: object) -> list[str]:
    return [segment.request for segment in segments] if is_targets(model.kv) else []


VERIFYING = [
    Fault(
        NativeVerifier, "_choose", lambda _, works, __: [w.request for w in works if w.wanted_rows]
    ),
    Fault(PackedModel, "forward", of_the_target, late=True),
    Fault(NativeVerifier, "_prepare", lambda _self, _index, order, _held: [order[0][0]]),
    Fault(KVCache, "commit", lambda kv, request, *_: [request] if is_targets(kv) else []),
    Fault(NativeVerifier, "_commit", in_the_middle, late=True),
    Fault(ServedRequest, "commit", lambda self, *_: [self.name]),
]


@pytest.mark.parametrize("fault", VERIFYING, ids=lambda fault: fault.method)
def test_a_request_that_cannot_be_verified_fails_alone(
    fleet: Fleet,
    prompts: list[list[int]],
    expected: list[Stream],
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
) -> None:
    poisons = 3
    fault.arise(monkeypatch)
    with caplog.at_level(logging.ERROR, "spindle"):
        streams, events = asyncio.run(served(fleet, prompts, poisons))
    count = len(prompts)
    assert streams[:count] == expected[:count]
    assert streams[-1] == expected[0]
    failures = streams[count : count + poisons]
    assert all(isinstance(failure, RequestFailed) for failure in failures)
    assert all("secret" not in str(failure) for failure in failures)
    left = [event for event in events if isinstance(event, Left)]
    assert sorted(event.view.name.split("-")[0] for event in left if event.failed) == (
        [POISON] * poisons
    )
    logged = [record for record in caplog.records if record.exc_info is not None]
    assert len(logged) == poisons, "each logged once, with its traceback"
    assert all(POISON in record.getMessage() for record in logged)


IN_A_MODEL = Fault(PackedRunner, "extend", lambda _, trees, __: [job.request for job in trees.jobs])
AFTER_A_STEP = Fault(
    PackedRunner,
    "step",
    lambda _, trees, drafting: [trees.jobs[number].request for number in drafting],
    late=True,
)
IN_LOOKUPS = [
    Fault(lookup, "_grow", lambda _self, order, _held: [order[0][0]], late=True)
    for lookup in (NgramDrafter, SuffixDrafter)
]
DRAFTING = {
    "model": [IN_A_MODEL],
    "step": [AFTER_A_STEP],
    "lookups": IN_LOOKUPS,
    "all": [IN_A_MODEL, *IN_LOOKUPS],
}


@pytest.mark.parametrize("where", DRAFTING)
def test_a_request_for_which_a_drafter_fails_continues_without_that_lane(
    fleet: Fleet,
    prompts: list[list[int]],
    expected: list[Stream],
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    for fault in DRAFTING[where]:
        fault.arise(monkeypatch)
    with caplog.at_level(logging.ERROR, "spindle"):
        streams, events = asyncio.run(served(fleet, prompts, 2))
    assert streams == [*expected[:-1], *expected[:2], expected[0]]
    assert len(caplog.records) <= 2 * len(fleet.lanes), "each lane fails once for each poison"
    of_poisons = [
        event.statistics.by_lane
        for event in events
        if isinstance(event, Left) and event.view.name.startswith(POISON)
    ]
    if where == "all":
        assert of_poisons == [{}, {}]


def test_a_drafter_in_the_replicas_process_that_always_fails_is_given_up(
    fleet: Fleet,
    prompts: list[list[int]],
    expected: list[Stream],
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(PackedRunner, "extend", broken)
    streams, _ = asyncio.run(served(fleet, prompts))
    assert streams == expected
    assert "drafter tiny cannot be loaded" in caplog.text


def test_a_host_that_fails_for_every_order_is_lost(fleet: Fleet, monkeypatch: Patch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(PackedModel, "forward", broken)
    prefix = Prefix("one", 0, 0, 0, EMPTY_HASH, (5, 6), Start(SamplingParams(), 0, 2))
    with pytest.raises(HostLost):
        asyncio.run(fleet.verifier.verify([VerifyOrder(prefix, DraftTree.empty(), 8)]))

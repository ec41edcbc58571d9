"""Drafters and verifier as Ray actors: the same streams while actors die or hang."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import ray
import torch
from transformers import LlamaConfig

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import (
    Drafted,
    Event,
    FeaturesLost,
    LaneDown,
    LaneUp,
    Verified,
    VerifierDown,
    VerifierUp,
)
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Limits, Policies
from actors.coordinator.stream import Stream
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Group
from benchmarks.generation import generate
from benchmarks.serving.chaos import kill_rank
from cluster.built_in_models import TARGET, model_path
from cluster.checkpoints import eagle3_shape
from cluster.config import DrafterConfig, TargetConfig
from engine.drafters.eagle3_head import Eagle3Head
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from policies.scheduling.fcfs import fcfs
from policies.speculation.fixed import Fixed
from tests.actors.coordinator.policies import Touring
from tests.actors.hosts.cluster import processes, runs, until
from tests.checkpoints import llama
from tests.engine.drafters.eagle3_heads import config, write_head
from tests.engine.streams import reference_target
from tests.identity import assert_identical, joined

Kind = TypeVar("Kind", bound=Event)
KV_TOKENS = 4096
LIMITS = Limits(max_batch=4, kv_tokens=KV_TOKENS)
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
WARM = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=60, seed=11, ignore_eos=True)
PROMPTS = [[5, 6, 7], list(range(40, 90)), [3], [11, 12] * 20]
PARAMS = [GREEDY, WARM, replace(WARM, seed=12), GREEDY]
TARGET_CONFIG = TargetConfig(dtype="float32", kv_tokens=KV_TOKENS)
TINY = DrafterConfig(name="tiny", model="zoo/tiny", instances=2)
LOOKUP = DrafterConfig(name="ngram", kind="ngram")
STARTS_S = 240.0
"""For two ranks of vLLM on a machine that does other work."""
quick_fleet = partial(start_fleet, limits=LIMITS, measure_s=0.1)
"""No test here depends on exact costs."""
pytestmark = pytest.mark.usefixtures("loop")


@dataclass
class Served:
    """A fleet under a coordinator that switches every request from lane to lane."""

    fleet: Fleet
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        views = [lane.view for lane in self.fleet.lanes]
        self.coordinator = Coordinator(
            self.fleet.verifier,
            self.fleet.lanes,
            Policies(fcfs(), Touring(), Fixed()),
            Estimates(self.fleet.costs, views),
            LIMITS,
            observe=self.events.append,
        )

    def seen(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    async def close(self) -> None:
        await self.coordinator.close()
        await self.fleet.close()


@dataclass
class Reading:
    """The streams of all PROMPTS."""

    served: Served
    name: str

    def __post_init__(self) -> None:
        self.tokens: list[list[int]] = [[] for _ in PROMPTS]
        streams = [
            self.served.coordinator.submit(f"{self.name}-{number}", prompt, params)
            for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
        ]
        self.streams: Sequence[Stream] = streams
        self._tasks = [asyncio.create_task(self._read(n, s)) for n, s in enumerate(streams)]

    async def _read(self, number: int, stream: Stream) -> None:
        async for commit in stream:
            assert commit.first_index == len(self.tokens[number])
            self.tokens[number] += commit.token_ids

    async def midway(self) -> None:
        await until(lambda: min(map(len, self.tokens)) >= 6)
        assert max(map(len, self.tokens)) < 50, "too late for a fault to matter"

    async def whole(self, most_s: float = 60) -> list[list[int]]:
        async with asyncio.timeout(most_s):
            await asyncio.gather(*self._tasks)
        return self.tokens


@pytest.fixture(scope="module")
def loop(ray_cluster: None) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def served(loop: asyncio.Runner, profiles: Path) -> Iterator[Served]:
    async def start() -> Served:
        fleet = await quick_fleet(TARGET_CONFIG, [TINY, LOOKUP], profiles, Group("test"))
        return Served(fleet)

    served = loop.run(start())
    yield served
    loop.run(served.close())


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    model = PackedModel.load(
        model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=KV_TOKENS
    )
    return joined(generate(NativeVerifier(model), PROMPTS, PARAMS), len(PROMPTS))[0]


async def assert_kv_is_free(served: Served) -> None:
    await asyncio.sleep(0.2)  # the last release is on its way
    kv = await served.coordinator.kv_state()
    assert kv.used == 0
    assert kv.free + kv.cached == kv.total


async def test_streams_equal_plain_decoding_and_leave_no_kv(
    served: Served, plain: list[list[int]]
) -> None:
    reading = Reading(served, "first")
    assert await reading.whole() == plain
    drafted = [lane for stream in reading.streams for lane in stream.statistics.by_lane]
    assert {"tiny/0", "tiny/1"} <= set(drafted)
    accepted = sum(o.accepted for e in served.seen(Verified) for o in e.outcomes)
    assert accepted > 20, "too few draft tokens were accepted for a test"
    await assert_kv_is_free(served)


async def test_a_killed_drafter_is_replaced_without_effect_on_streams(
    served: Served, plain: list[list[int]]
) -> None:
    served.events.clear()
    killed = processes("test")["tiny/0"]
    reading = Reading(served, "killed-drafter")
    await reading.midway()
    os.kill(killed, signal.SIGKILL)
    assert await reading.whole() == plain
    await until(lambda: bool(served.seen(LaneUp)))
    assert [down.lane for down in served.seen(LaneDown)] == ["tiny/0"]
    assert served.seen(LaneUp)[0].seconds < LIMITS.recovery_s
    assert processes("test")["tiny/0"] != killed
    before = len(served.seen(Verified))
    assert await Reading(served, "after").whole() == plain
    rounds = served.seen(Verified)[before:]
    assert "tiny/0" in {o.lane for e in rounds for o in e.outcomes}, "the new drafter is not used"


def write_random_head(path: Path) -> DrafterConfig:
    """An EAGLE-3 head for the zoo's target."""
    sizes = TARGET_CONFIG.architecture()
    settings = config(
        draft_vocab_size=sizes.vocab_size,
        target_hidden_size=sizes.hidden_size,
        eagle_aux_hidden_state_layer_ids=[1, 3],
    )
    layer = settings["transformer_layer_config"] | {"vocab_size": sizes.vocab_size}
    settings["transformer_layer_config"] = layer
    write_head(path, {}, settings)
    weights = Eagle3Head(eagle3_shape(path), LlamaConfig(**layer)).state_dict()
    write_head(path, weights, settings)
    return DrafterConfig(name="head", kind="eagle3", model=str(path))


async def test_a_head_gets_features_between_processes_and_is_replaced_when_it_is_killed(
    profiles: Path, plain: list[list[int]], tmp_path: Path
) -> None:
    head = write_random_head(tmp_path)
    fleet = await quick_fleet(TARGET_CONFIG, [head], profiles, Group("heads"))
    served = Served(fleet)
    reading = Reading(served, "killed-head")
    await reading.midway()
    assert served.seen(Drafted)
    os.kill(processes("heads")["head"], signal.SIGKILL)
    assert await reading.whole() == plain
    await until(lambda: bool(served.seen(LaneUp)))
    served.events.clear()
    assert await Reading(served, "after").whole() == plain
    assert served.seen(Drafted)
    assert not served.seen(FeaturesLost)
    await served.close()


async def test_streams_go_on_while_a_drafter_hangs_which_is_killed_and_replaced(
    served: Served, plain: list[list[int]]
) -> None:
    served.events.clear()
    stopped = processes("test")["tiny/1"]
    reading = Reading(served, "stopped-drafter")
    await reading.midway()
    before = sum(map(len, reading.tokens))
    os.kill(stopped, signal.SIGSTOP)
    await until(lambda: sum(map(len, reading.tokens)) > before + 20)
    assert not served.seen(LaneDown), "it is given up after 5 s: nothing has waited for that"
    assert await reading.whole() == plain
    await until(lambda: bool(served.seen(LaneDown)))
    (down,) = served.seen(LaneDown)
    assert down.lane == "tiny/1"
    assert "no answer for 5.0 s" in down.error
    await until(lambda: bool(served.seen(LaneUp)))
    await until(lambda: not runs(stopped))


async def test_a_killed_verifier_is_replaced_and_streams_continue(
    served: Served, plain: list[list[int]]
) -> None:
    served.events.clear()
    killed = processes("test")["verifier"]
    reading = Reading(served, "killed-verifier")
    await reading.midway()
    os.kill(killed, signal.SIGKILL)
    assert await reading.whole() == plain
    assert len(served.seen(VerifierDown)) == len(served.seen(VerifierUp)) == 1
    assert processes("test")["verifier"] != killed
    await assert_kv_is_free(served)


async def test_vllms_ranks_serve_the_references_streams_and_a_head_while_one_is_killed(
    profiles: Path, tmp_path: Path
) -> None:
    eager = {"enforce_eager": True}  # without compilation it loads in a third of the time
    ranks_of = {"backend": "vllm", "tensor_parallel": 2, "engine_args": eager}
    target = TARGET_CONFIG.model_copy(update=ranks_of)
    limits = LIMITS.model_copy(update={"recovery_s": STARTS_S})
    drafters = [LOOKUP, write_random_head(tmp_path)]
    fleet = await quick_fleet(target, drafters, profiles, Group("vllm"), limits=limits)
    served = Served(fleet)
    reading = Reading(served, "vllm")
    await reading.midway()
    first = processes("vllm")["verifier"]
    kill_rank(first)
    streams = await reading.whole(STARTS_S)
    assert len(served.seen(VerifierUp)) == 1
    assert "head" in {event.lane for event in served.seen(Drafted)}
    assert not served.seen(FeaturesLost)
    assert_identical(reference_target(), PROMPTS, streams, PARAMS)
    assert sum(stream.statistics.accepted for stream in reading.streams) > 0
    second = processes("vllm", life=1)["verifier"]
    ranks = psutil.Process(second).children(recursive=True)
    assert len(ranks) >= target.tensor_parallel
    await served.close()
    await until(lambda: not processes("vllm") and not runs(first))
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive


class Owner:
    """A process that creates an actor and dies."""

    async def own(self) -> None:
        self._owned = await Group("owned").launch_drafter(TINY, "tiny/0", TARGET_CONFIG, 0)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def test_actors_end_with_the_process_that_created_them() -> None:
    owner = ray.remote(Owner).options(num_cpus=0).remote()
    await owner.own.remote()
    (pid,) = processes("owned").values()
    owner.die.remote()
    await until(lambda: not runs(pid), seconds=15)


async def test_the_error_of_a_model_is_raised_unchanged_and_no_actor_stays(
    profiles: Path, tmp_path: Path
) -> None:
    llama(vocab=97).save_pretrained(tmp_path)
    inline = TARGET_CONFIG.model_copy(update={"placement": "inline"})
    alien = DrafterConfig(name="alien", model=str(tmp_path))
    with pytest.raises(IncompatibleDrafter, match=r"has no tokenizer\.json") as refused:
        await quick_fleet(inline, [alien], profiles, Group("bad"))
    assert refused.value.field == "model"
    await until(lambda: not processes("bad"))

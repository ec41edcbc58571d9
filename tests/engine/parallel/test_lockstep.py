"""Several ranks compute what one process computes, stay in step, and end together."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from inspect import isfunction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from cluster.built_in_models import TARGET, model_path
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import RankLost, UnsupportedModel
from engine.generate import generate
from engine.hidden_states import HiddenStates
from engine.kv.cache import KVCache
from engine.model import PackedModel, Segment, load_stock
from engine.parallel.lockstep import JournaledKV, LeadingModel, split
from engine.parallel.ranks import Messages, Place
from engine.parallel.sharding import InvalidTensorParallel, Share, check_ranks, shard
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import prompt_logprobs
from tests.checkpoints import VOCAB, blurred, llama
from tests.engine.families import SUPPORTED, build
from tests.engine.parallel.other_ranks import (
    TIMEOUT_S,
    Build,
    leading,
    places_at,
    start_follower,
    start_idle_leader,
)
from tests.engine.random_rounds import largest_error

WITHOUT_PLAN = ("gpt2", "gpt_oss")
UNEVEN = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=50,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=3,
    max_position_embeddings=256,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=1,
)
"""For three ranks: divides by its heads, but not by its vocabulary or intermediate size."""
zoo_target = partial(load_stock, model_path(TARGET), torch.float32)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, top_p=0.9, seed=5, max_tokens=24, ignore_eos=True)
SILENCE_S = 2.0
"""Timeout of the ranks in tests where one falls silent."""


@pytest.fixture
def meeting_point(tmp_path: Path) -> Iterator[Path]:
    """A leader that could not begin must not leave its group to the tests after it."""
    yield tmp_path / "ranks"
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("family", [name for name in SUPPORTED if name not in WITHOUT_PLAN])
def test_two_ranks_logits_equal_the_stock_models(family: str, meeting_point: Path) -> None:
    whole = partial(with_biases, SUPPORTED[family])
    with leading(whole, meeting_point) as model:
        assert largest_error(model, whole(), np.random.default_rng(1)) < 1e-4


def with_biases(config: PreTrainedConfig) -> PreTrainedModel:
    """New biases are zero, which would hide a bias that every rank adds to a sum."""
    model = build(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.2)
    return model


@pytest.mark.parametrize(("ranks", "whole"), [(2, zoo_target), (3, partial(build, UNEVEN))])
def test_each_rank_holds_an_equal_share_of_the_weights(
    ranks: int, whole: Build, meeting_point: Path
) -> None:
    stock = whole()
    shares = []
    for rank in range(ranks):
        model = whole()
        shard(model, Share(rank, ranks))
        shares.append(linear_weights(model))
    assert sum(shares) == linear_weights(stock)
    assert max(shares) < (1 / ranks + 0.01) * linear_weights(stock)
    with leading(whole, meeting_point, ranks=ranks) as model:
        assert model.kv.shape.kv_heads == stock.config.num_key_value_heads // ranks
        assert largest_error(model, stock, np.random.default_rng(2)) < 1e-4


def linear_weights(model: PreTrainedModel) -> int:
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    return sum(module.weight.numel() for module in linear)


@pytest.mark.parametrize("whole", [llama, zoo_target])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_two_ranks_generate_the_commits_of_one_process(
    params: SamplingParams, whole: Build, meeting_point: Path
) -> None:
    """With draft trees, chunked prefill, prefix hits and a pool too small for all requests."""
    alone = generated(PackedModel(whole(), kv_tokens=256), whole, params)
    with leading(whole, meeting_point, kv_tokens=256) as model:
        assert generated(model, whole, params) == alone
        assert model.kv.cached_blocks > 0


def generated(
    model: PackedModel, whole: Build, params: SamplingParams
) -> dict[str, list[tuple[int, ...]]]:
    """Each request's commits, so that accepted drafts are compared too."""
    drafter = ModelDrafter(
        "blurred",
        PackedRunner(PackedModel(blurred(whole(), 0.1), kv_tokens=1024)),
        target_vocab_size=model.vocab_size,
    )
    shared = [11 * token % VOCAB for token in range(35)]
    prompts = [[*shared, *range(tail)] for tail in (1, 9, 30, 60, 90)]
    commits: dict[str, list[tuple[int, ...]]] = {}
    for commit in generate(
        NativeVerifier(model), prompts, params, drafter=drafter, depth=3, width=2, chunk=32
    ):
        assert isinstance(commit, Commit)
        commits.setdefault(commit.request, []).append(commit.token_ids)
    assert any(len(tokens) > 2 for tokens in commits["0"]), "no draft was accepted"
    return commits


def test_prompt_logprobs_equal_the_stock_models(meeting_point: Path) -> None:
    """For a prompt in the prefix cache, in chunks."""
    prompt = [11 * token % VOCAB for token in range(60)]
    stock = llama()
    stock.set_attn_implementation("eager")
    with leading(llama, meeting_point) as model:
        verifier = NativeVerifier(model)
        list(generate(verifier, [prompt], GREEDY))
        first = next(generate(verifier, [prompt], replace(GREEDY, prompt_logprobs=2), chunk=16))
        verifier.forget(["0"])
    assert isinstance(first, Commit)
    prompt_logprobs.check(stock, prompt, 2, first.prompt_logprobs)


def test_the_leader_has_whole_hidden_states(meeting_point: Path) -> None:
    tokens, rows = [5, 6, 7, 8, 9], range(5)
    with leading(llama, meeting_point) as model:
        model.kv.open("a", [])
        shared = HiddenStates([0, 1])
        model.forward([chain("a", tokens)], shared)
    alone, whole = PackedModel(llama(), kv_tokens=64), HiddenStates([0, 1])
    alone.kv.open("a", [])
    alone.forward([chain("a", tokens)], whole)
    np.testing.assert_allclose(shared.rows([0, 1], rows), whole.rows([0, 1], rows), atol=1e-4)


def test_a_swapped_out_request_is_swapped_in_on_all_ranks(meeting_point: Path) -> None:
    with leading(llama, meeting_point, swap_tokens=64) as model:
        model.kv.open("parked", [])
        model.forward([chain("parked", range(40))])
        model.kv.commit("parked", range(40), list(range(40)))
        model.kv.swap_out("parked")
        model.forward([])
        model.kv.open("other", [])
        model.forward([chain("other", [7] * 60)])  # overwrites the swapped rows
        model.kv.swap_in("parked")
        segment = chain("parked", [3], first=40)
        logits = model.forward([segment])
    alone = PackedModel(llama(), kv_tokens=64)
    alone.kv.open("fresh", [])
    expected = alone.forward([chain("fresh", [*range(40), 3])])
    assert float((logits[0] - expected[-1]).abs().max()) < 1e-4


def chain(request: str, tokens: Sequence[int], first: int = 0) -> Segment:
    rows = np.arange(len(tokens), dtype=np.int32)
    return Segment(request, np.array(tokens, np.int32), first + rows, None, rows)


def test_every_method_that_changes_a_pool_is_journaled() -> None:
    """A method of KVCache missing from JournaledKV would put followers out of step."""
    read_only = {"length", "tail", "is_swapped", "slots", "check"}
    methods = {name for name, one in vars(KVCache).items() if isfunction(one) and name[0] != "_"}
    assert methods - read_only == vars(JournaledKV).keys() & methods


@pytest.mark.parametrize(
    ("ranks", "fits"), [(1, True), (2, True), (0, False), (3, False), (4, False)]
)
def test_ranks_that_do_not_divide_the_heads_are_refused(ranks: int, fits: bool) -> None:
    config = AutoConfig.from_pretrained(model_path(TARGET))  # 4 heads read 2 key-value heads
    if fits:
        check_ranks(config, ranks)
        return
    with pytest.raises(InvalidTensorParallel, match=r"^tensor_parallel: .* possible are 1, 2$"):
        check_ranks(config, ranks)


@pytest.mark.parametrize("family", WITHOUT_PLAN)
def test_families_without_a_plan_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{family}.*tensor-parallel plan"):
        shard(build(SUPPORTED[family]), Share(0, 2))


@pytest.fixture
def places(meeting_point: Path) -> list[Place]:
    return places_at(meeting_point, 2, SILENCE_S)


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_ends_when_its_leader_is_killed_or_stopped(
    fate: signal.Signals, places: list[Place]
) -> None:
    leader = start_idle_leader(llama, places[0], kv_tokens=64)
    follower = start_follower(llama, places[1], kv_tokens=64)
    try:
        assert leader.answer() == "leads"
        assert leader.process.pid is not None
        os.kill(leader.process.pid, fate)
        assert str(follower.answer()).startswith("RankLost: ")
    finally:
        leader.stop()
        follower.stop()


def test_heartbeats_keep_followers_while_the_leader_is_idle(meeting_point: Path) -> None:
    with leading(llama, meeting_point, timeout_s=SILENCE_S) as model:
        time.sleep(2 * SILENCE_S)
        model.kv.open("late", [])
        assert len(model.forward([chain("late", [1, 2, 3])])) == 3


@pytest.mark.parametrize("idle_s", [0, SILENCE_S])
def test_a_leader_without_its_follower_raises_rank_lost_from_then_on(
    idle_s: float, places: list[Place]
) -> None:
    follower = start_follower(llama, places[1], kv_tokens=64)
    model = LeadingModel(split(llama(), places[0], "cpu"), places[0], kv_tokens=64)
    follower.stop()
    time.sleep(idle_s)
    model.kv.open("one", [])
    for _ in range(2):
        with pytest.raises(RankLost):
            model.forward([chain("one", [1, 2, 3])])
    model.close()


def test_ranks_whose_pools_differ_raise_rank_lost(places: list[Place]) -> None:
    follower = start_follower(llama, places[1], kv_tokens=128)
    model = LeadingModel(split(llama(), places[0], "cpu"), places[0], kv_tokens=64)
    model.kv.open("one", [])
    with closing(model), pytest.raises(RankLost):
        model.forward([chain("one", [1, 2, 3])])
    assert str(follower.answer()).startswith("RankLost: out of step")
    follower.stop()


def test_an_error_in_the_leaders_forward_ends_its_followers_at_once(meeting_point: Path) -> None:
    """Otherwise they would wait inside a layer until the timeout."""
    places = places_at(meeting_point, 2, 10 * TIMEOUT_S)
    follower = start_follower(llama, places[1], kv_tokens=64)
    model = LeadingModel(split(llama(), places[0], "cpu"), places[0], kv_tokens=64)

    def fail(*_: object) -> None:
        raise MemoryError

    model.hf_model.model.layers[1].register_forward_pre_hook(fail)
    model.kv.open("one", [])
    with pytest.raises(MemoryError):
        model.forward([chain("one", [1, 2, 3])])
    assert str(follower.answer()).startswith("RankLost: ")
    model.close()
    follower.stop()


class Touching:
    """Creates a file wherever it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


@pytest.mark.parametrize("secret", [b"guessed", None])
def test_a_message_without_the_ranks_secret_is_not_unpickled(
    secret: bytes | None, meeting_point: Path, tmp_path: Path
) -> None:
    """None: no signature at all, as torch.distributed sends objects."""
    places = places_at(meeting_point, 2, TIMEOUT_S)
    follower = start_follower(llama, places[1], kv_tokens=64)
    model = LeadingModel(split(llama(), places[0], "cpu"), places[0], kv_tokens=64)
    message = Touching(tmp_path / "unpickled")
    if secret is None:
        dist.broadcast_object_list([message], src=0, device=torch.device("cpu"))
    else:
        Messages(secret).broadcast(message)
    assert "is not signed by the leader" in str(follower.answer())
    assert not (tmp_path / "unpickled").exists()
    model.close()
    follower.stop()


def test_a_message_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: sent.append(tensor.clone()))
    Messages(b"secret").broadcast("step")
    replayed = iter(sent * 2)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: tensor.copy_(next(replayed)))
    follower = Messages(b"secret")
    assert follower.receive() == "step"
    with pytest.raises(RankLost, match="is not signed by the leader"):
        follower.receive()

"""EAGLE-3 heads: what they draft, from which features, and that outputs stay the same."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, PreTrainedModel

from actors.hosts.isolation import isolated
from actors.hosts.workers import DrafterWorker
from benchmarks.generation import generate
from cluster.checkpoints import eagle3_shape
from cluster.config import DrafterConfig, TargetConfig
from engine.cpu.quantized_linear import Int8Linear
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_head import Eagle3Head
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel
from engine.protocol import Draft, DraftOrder, Features, Missing
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, eager_llama, llama
from tests.engine.drafters.eagle3_heads import (
    HIDDEN,
    LAYERS,
    attention_biases,
    config,
    random_weights,
    speculators_logits,
    speculators_model,
    target_ids,
    write_head,
)
from tests.engine.drafters.orders import Stream, assert_equal, beam_search
from tests.identity import joined

WIDTH = len(LAYERS) * HIDDEN
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=5)
PENALISED = replace(
    SAMPLED, repetition_penalty=1.3, top_p=0.9, logit_bias={int(target_ids()[7]): 3.0}
)
PROMPTS = [[5, 6, 7], [9] * 30, [3], [5, 6, 7, 8]]
Rows = NDArray[np.float32]


def features_of(seed: int, count: int) -> Rows:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


class FedStream(Stream):
    """A stream whose positions have random features, which its orders bring along."""

    def __init__(self, name: str, prompt: Sequence[int], params: SamplingParams, seed: int) -> None:
        super().__init__(name, prompt, params, seed)
        self.features = features_of(seed, 256)

    def order(self, depth: int, width: int = 1) -> DraftOrder:
        first, end = max(self.seen - 1, 0), len(self.committed) - 1
        order = super().order(depth, width)
        return order._replace(features=Features(first, self.features[first:end]))


def make(path: Path, kv_tokens: int = 1024) -> Eagle3Drafter:
    head = Eagle3Head.load(path, "cpu", torch.float32)
    return Eagle3Drafter("head", head, kv_tokens=kv_tokens, target_vocab_size=VOCAB)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("head"), random_weights())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("norm_before_residual", [True, False])
def test_logits_equal_those_of_the_package_speculators(
    tmp_path: Path, norm_before_residual: bool, biased: bool
) -> None:
    """For a chain; a tree's rows are compared by its confidences."""
    settings = config(norm_before_residual=norm_before_residual)
    settings["transformer_layer_config"]["attention_bias"] = biased
    weights = random_weights() | (attention_biases() if biased else {})
    path = write_head(tmp_path / "head", weights, settings)
    stream = FedStream("a", [5, 9, 2, 6, 5, 3], GREEDY, 1)
    scores: list[torch.Tensor] = []
    drafter = make(path)
    original = Eagle3Head.logits

    def recording(self: Eagle3Head, hidden: torch.Tensor) -> torch.Tensor:
        scores.append(original(self, hidden))
        return scores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eagle3Head, "logits", recording)
        drafted = stream.draft(drafter, depth=3).tokens.tolist()
    assert len(scores) == 3
    known = stream.features[: len(stream.committed) - 1]
    model = speculators_model(weights, settings)
    theirs = speculators_logits(model, stream.committed.ids + drafted[:-1], known)
    for own, logits in zip(scores, theirs, strict=True):
        np.testing.assert_allclose(own[0].numpy(), logits, atol=1e-4)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALISED])
@pytest.mark.parametrize(("depth", "width"), [(5, 1), (3, 4)])
def test_a_tree_equals_beam_search_from_scratch(
    checkpoint: Path, params: SamplingParams, depth: int, width: int
) -> None:
    """Also with the target's noise, which takes the target's ids."""
    model = speculators_model(random_weights(), config())
    for seed in range(3):
        stream = FedStream("a", [5, 9, 2, 6, 5, 3, seed], params, seed)
        known = stream.features[: len(stream.committed) - 1]

        def logits_after(tokens: Sequence[int], known: Rows = known) -> NDArray[np.float64]:
            scores = np.full(VOCAB, -np.inf)
            scores[target_ids().numpy()] = speculators_logits(model, tokens, known)[-1]
            return scores

        expected = beam_search(logits_after, stream, depth, width)
        assert_equal(stream.draft(make(checkpoint), depth, width), expected, 0.02)


@pytest.mark.parametrize("seed", range(3))
def test_drafting_in_deltas_and_batches_equals_drafting_at_once_and_alone(
    checkpoint: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drafter = make(checkpoint, kv_tokens=2048)
    streams = [
        FedStream(str(number), rng.integers(VOCAB, size=int(rng.integers(2, 60))).tolist(), one, 3)
        for number, one in enumerate((GREEDY, SAMPLED, PENALISED, GREEDY))
    ]
    for _ in range(6):
        batch = [stream for stream in streams if rng.random() < 0.7]
        shapes = [(int(rng.integers(0, 5)), int(rng.integers(1, 4))) for _ in batch]
        orders = [stream.order(*shape) for stream, shape in zip(batch, shapes, strict=True)]
        answers = drafter.draft(orders)
        for stream, shape, answer in zip(batch, shapes, answers, strict=True):
            assert isinstance(answer, Draft)
            copy = FedStream(stream.name, stream.committed.ids, stream.params, stream.seed)
            copy.prompt_len = stream.prompt_len
            assert_equal(answer.tree, copy.draft(make(checkpoint), *shape))
            if len(answer.tree):
                path = answer.tree.path(int(rng.integers(len(answer.tree))))
                stream.committed.extend(answer.tree.tokens[path].tolist())
            stream.committed.extend([int(rng.integers(VOCAB))])


def test_without_its_rows_or_features_it_says_from_where_it_lacks_them(checkpoint: Path) -> None:
    drafter = make(checkpoint, kv_tokens=16)
    stream = FedStream("a", [5, 9, 2, 6], GREEDY, 0)
    (answer,) = drafter.draft([stream.order(2)._replace(features=None)])
    assert answer == Missing("a", 0, 1, have=0)
    stream.seen = 0
    expected = stream.draft(drafter, depth=2)
    stream.committed.extend([8, 9])
    (answer,) = drafter.draft([stream.order(2)._replace(features=None)])
    assert isinstance(answer, Missing)
    assert answer.have == 4  # what follows are the features of position 3
    FedStream("b", [7] * 16, GREEDY, 1).draft(drafter, depth=1)  # evicts its rows
    (answer,) = drafter.draft([stream.order(2)])
    assert isinstance(answer, Missing)
    assert answer.have == 0
    stream.committed.truncate(4)
    stream.seen = 0
    assert_equal(stream.draft(drafter, depth=2), expected)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_call_that_raises_costs_no_request_its_head(checkpoint: Path, failing: int) -> None:
    """The failing forward, one over committed tokens or over drafted ones, has stored its rows
    already; rows of tokens that were committed before the call stay."""
    drafter, undisturbed = make(checkpoint), make(checkpoint)
    streams = [FedStream(name, [5, 9, 2, 6], SAMPLED, seed) for seed, name in enumerate("abcd")]
    forwards = fails = 0

    def out_of_memory(*_: object) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == fails:
            raise RuntimeError("out of memory")

    drafter._rows.head.register_forward_hook(out_of_memory)
    for round_number in range(4):
        fails = 0 if round_number % 2 else forwards + failing
        orders = [stream.order(3, 2) for stream in streams]
        expected = undisturbed.draft(orders)
        answers = isolated(drafter, drafter.draft, orders, probe=lambda: None)
        assert forwards >= fails
        for stream, answer, other in zip(streams, answers, expected, strict=True):
            assert isinstance(answer, Draft)
            assert isinstance(other, Draft)
            assert_equal(answer.tree, other.tree)
            stream.committed.extend([int(other.tree.tokens[0]), 8 + round_number])


def target() -> PreTrainedModel:
    return llama(layers=4)


@pytest.mark.parametrize("kv_tokens", [1024, 80])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_outputs_equal_the_references(
    checkpoint: Path, params: SamplingParams, width: int, kv_tokens: int
) -> None:
    """Also in a pool that is too small for the requests, which then lack features."""
    drafter = make(checkpoint, kv_tokens)
    verifier = NativeVerifier(PackedModel(target(), kv_tokens=1024))
    served = generate(verifier, PROMPTS, params, drafter=drafter, depth=3, width=width)
    assert joined(served, len(PROMPTS))[0] == [
        reference.generate(eager_llama(layers=4), prompt, params, params.seed or 0)
        for prompt in PROMPTS
    ]


def test_a_head_that_knows_the_targets_next_token_but_one_is_accepted(tmp_path: Path) -> None:
    """The target continues token t with one that depends on t alone; the head maps the embedding of
    t, a feature, to the token after that."""
    hidden = 128
    directions = torch.linalg.qr(torch.randn(hidden, hidden, generator=torch.Generator())).Q[:VOCAB]
    following = torch.roll(torch.arange(VOCAB), -1)
    model = llama(hidden=hidden, layers=4)
    weights: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(directions)
        model.lm_head.weight[following] = directions
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    settings = config(target_hidden_size=hidden, eagle_aux_hidden_state_layer_ids=[0])
    settings |= {"draft_vocab_size": VOCAB, "norm_before_residual": False}
    settings["transformer_layer_config"] |= {"hidden_size": hidden}
    path = tmp_path / "head"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(settings))
    head = Eagle3Head(eagle3_shape(path), LlamaConfig(**settings["transformer_layer_config"]))
    with torch.no_grad():
        head.layers[0].self_attn.o_proj.weight.zero_()
        head.layers[0].mlp.down_proj.weight.zero_()
        head.fc.weight.copy_(directions[following[following]].T @ directions)
        head.lm_head.weight.copy_(directions)
    weights = {name: weight.clone() for name, weight in head.state_dict().items()}
    write_head(path, weights, settings)
    drafter = make(path)
    verifier = NativeVerifier(PackedModel(model, kv_tokens=1024))
    served = generate(verifier, PROMPTS, GREEDY, drafter=drafter, depth=1)
    _, commits = joined(served, len(PROMPTS))
    # The first token comes without a draft.
    assert commits <= len(PROMPTS) * (1 + GREEDY.max_tokens // 2)


def worker_of(head: Path, its_target: Path) -> DrafterWorker:
    config = {"name": "mine", "kind": "eagle3", "model": str(head), "dtype": "float32"}
    drafter = DrafterConfig.model_validate(config | {"kv_tokens": 512})
    return DrafterWorker(drafter, "mine", TargetConfig(model=str(its_target)))


@pytest.mark.parametrize("renamed", [False, True])
def test_it_is_loaded_by_its_config_with_the_embeddings_of_the_target(
    tmp_path: Path, renamed: bool
) -> None:
    model = target()
    model.save_pretrained(tmp_path / "target")
    weights = random_weights()
    del weights["embed_tokens.weight"]
    if renamed:
        weights = {name.replace("layers.0.", "midlayer."): one for name, one in weights.items()}
    path = write_head(tmp_path / "head", weights)
    worker = worker_of(path, tmp_path / "target")
    worker.load()
    assert worker.feature_layers() == LAYERS
    assert worker.measure(tmp_path, 0.01).step.predict(100, 4) > 0
    drafter = worker._drafter
    assert isinstance(drafter, Eagle3Drafter)
    head = drafter._rows.head
    assert torch.equal(head.embed_tokens.weight, model.model.embed_tokens.weight)
    assert head.vocabulary.target_ids.tolist() == target_ids().tolist()


BACKWARDS = 59 - 2 * torch.arange(60)


def matrix(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("embed_tokens.weight", {"embed_tokens.weight": None}),  # the target's are 64 wide
        ("d2t", {"d2t": None}),
        ("d2t", {"d2t": target_ids()[:-1]}),
        ("d2t", {"d2t": target_ids()[:, None]}),
        ("d2t", {"d2t": target_ids().float()}),
        ("d2t", {"d2t": target_ids() + VOCAB}),
        ("lm_head.weight", {"lm_head.weight": matrix(61, HIDDEN), "d2t": BACKWARDS}),
        ("fc.bias", {"fc.bias": matrix(HIDDEN)}),
        ("extra.weight", {"extra.weight": matrix(2, 2)}),
        ("norm.weight", {"norm.weight": None}),
        ("layers.0.mlp.up_proj.weight", {"layers.0.mlp.up_proj.weight": matrix(3, HIDDEN)}),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_names_of_drafter_and_tensor(
    tmp_path: Path, named: str, changes: dict[str, torch.Tensor | None]
) -> None:
    llama(hidden=64).save_pretrained(tmp_path / "target")
    weights = random_weights() | changes
    path = write_head(
        tmp_path / "head", {name: one for name, one in weights.items() if one is not None}
    )
    worker = worker_of(path, tmp_path / "target")
    with pytest.raises(IncompatibleDrafter, match=f"'mine': model: (.|\n)*{re.escape(named)}"):
        worker.load()


def test_a_head_of_another_vocabulary_is_refused_before_its_rows_are_looked_up(
    tmp_path: Path,
) -> None:
    llama(layers=4, vocab=57).save_pretrained(tmp_path / "target")
    weights = random_weights()
    del weights["lm_head.weight"]
    path = write_head(tmp_path / "head", weights)
    with pytest.raises(IncompatibleDrafter, match="'mine': vocab_size: 97 tokens"):
        worker_of(path, tmp_path / "target").load()


@pytest.mark.parametrize("int8", [False, True])
def test_in_fewer_bits_it_drafts_about_the_same(checkpoint: Path, int8: bool) -> None:
    dtype = torch.float32 if int8 else torch.bfloat16
    head = Eagle3Head.load(checkpoint, "cpu", dtype, int8=int8)
    assert isinstance(head.lm_head, Int8Linear) == int8
    rounded = Eagle3Drafter("head", head, kv_tokens=1024, target_vocab_size=VOCAB)
    same = 0
    for seed in range(20):
        drafts = [
            FedStream("a", [5, 9, 2, 6, seed], GREEDY, seed).draft(one, depth=2).tokens.tolist()
            for one in (rounded, make(checkpoint))
        ]
        same += drafts[0] == drafts[1]
        rounded.forget(["a"])
    assert same >= 15

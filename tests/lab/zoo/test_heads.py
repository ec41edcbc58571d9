"""Heads that are trained here: they compute what the engine serves, learn, resume, and count
acceptance rightly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cluster.built_in_models import model_path
from engine.drafters.eagle3_head import Eagle3Head
from engine.learning.training import DEPTH, walk
from engine.model import PackedModel
from engine.verifiers.native import NativeVerifier
from lab.zoo import __main__ as zoo_command
from lab.zoo import head_training, own_text
from lab.zoo.head_model import TrainedHead
from lab.zoo.head_training import (
    Acceptance,
    accepted_tokens,
    loss_of,
    reduced_vocabulary,
    teach,
    train_head,
)
from lab.zoo.own_text import (
    Conversation,
    read_shard,
    shard_path,
    write_shards,
)
from lab.zoo.target_states import ObservedText, observe, observed_shards
from tests.checkpoints import VOCAB

REDUCED = 60


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data = weight.bfloat16().float()  # as it is stored
    return model


@pytest.fixture
def head(target: LlamaForCausalLM) -> TrainedHead:
    torch.manual_seed(1)
    untrained = TrainedHead(target, torch.randperm(VOCAB)[:REDUCED].sort().values)
    layer = untrained.layers[0]
    for begins_with_zeros in (layer.self_attn.o_proj, layer.mlp.down_proj):
        torch.nn.init.normal_(begins_with_zeros.weight, std=0.3)
    return untrained


@pytest.fixture(autouse=True)
def _fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        head_training, "fast_products", lambda: torch.autocast("cpu", torch.bfloat16, enabled=False)
    )


def texts(target: LlamaForCausalLM, count: int, length: int = 24) -> list[ObservedText]:
    """Each counts up from its own beginning, a pattern that can be learnt."""
    return observe(
        target,
        [
            Conversation(tuple((start + step) % 50 for step in range(length)), 6, True)
            for start in range(count)
        ],
    )


def served_logits(head: Eagle3Head, tokens: Tensor, features: Tensor, drafted: int) -> Tensor:
    """The engine's module, all rows of one text at once; the last `drafted` ones read the output of
    the row before them."""
    known = len(tokens) - 1 - drafted

    def run(hidden: Tensor) -> Tensor:
        count = len(hidden)

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            mask = torch.ones(count, count, dtype=torch.bool).tril()
            out = torch.nn.functional.scaled_dot_product_attention(
                query.transpose(0, 1),
                keys.repeat_interleave(2, 1).transpose(0, 1),
                values.repeat_interleave(2, 1).transpose(0, 1),
                attn_mask=mask,
            )
            return out.transpose(0, 1)

        return head(tokens[1 : 1 + count], hidden, torch.arange(count), attend)

    hidden = head.fuse(features[:known])
    output = run(hidden)
    for _ in range(drafted):
        hidden = torch.cat([hidden, output[-1:]])
        output = run(hidden)
    return head.logits(output[-1])


@pytest.mark.parametrize("output_matrix", [True, False])
def test_every_step_equals_the_module_that_serves(
    target: LlamaForCausalLM, head: TrainedHead, tmp_path: Path, output_matrix: bool
) -> None:
    for weight in head.parameters():
        weight.data = weight.bfloat16().float()  # as it is stored
    target.save_pretrained(tmp_path / "target")
    head.save(tmp_path / "head", DEPTH, "target", output_matrix=output_matrix)
    served = Eagle3Head.load(tmp_path / "head", "cpu", torch.float32, tmp_path / "target")
    assert served.vocabulary.target_ids.tolist() == head.target_ids.tolist()
    tokens = torch.randint(0, VOCAB, (1, 20))
    with torch.no_grad():
        states = target(tokens, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in served.aux_layers], -1)
        steps = head(features, target.model.embed_tokens(tokens), DEPTH)
        for step, logits in enumerate(steps):
            expected = served_logits(served, tokens[0, : 11 + step], features[0], step)
            assert (logits[0, 9] - expected).abs().max() <= 1e-4


def test_vllm_reads_the_config(head: TrainedHead, tmp_path: Path) -> None:
    configs = pytest.importorskip("vllm.transformers_utils.configs.speculators.base")
    head.save(tmp_path, DEPTH, "target")
    read = configs.SpeculatorsConfig.from_pretrained(tmp_path)
    assert read.architectures == ["Eagle3LlamaForCausalLM"]
    assert (read.draft_vocab_size, read.target_hidden_size) == (REDUCED, 32)
    assert read.norm_before_residual
    assert tuple(read.eagle_aux_hidden_state_layer_ids) == head.aux_layers


def test_states_are_the_targets_and_padding_changes_none(target: LlamaForCausalLM) -> None:
    short, long = texts(target, 2)[0], texts(target, 3, 40)[2]
    together = observe(target, [short.conversation, long.conversation])
    for text, alone in zip(together, (short, long), strict=True):
        output = target(torch.tensor([text.conversation.tokens]), output_hidden_states=True)
        entering = torch.cat([output.hidden_states[layer][0] for layer in (2, 4, 5)], -1)
        assert torch.equal(text.choices, output.logits[0].argmax(-1).int())
        assert torch.allclose(text.features.float(), entering, rtol=1e-2, atol=1e-2)
        assert torch.allclose(text.last.float(), alone.last.float(), rtol=1e-2, atol=1e-2)


def test_acceptance_is_counted_as_a_greedy_chain_would_be() -> None:
    text = Conversation((0, 1, 2, 3, 4, 5, 6, 7), 2, True)
    chosen = np.full((8, DEPTH), -1)
    chosen[1] = [3, 4, -1, 6]  # after token 2: two accepted, then wrong
    chosen[4] = [6, 7, 8, 9]  # after token 5: two, then the text ends
    accepted = accepted_tokens(text, chosen)
    assert accepted.tolist() == [2, 0, 0, 2, 0]
    assert walk(accepted) == (5, 2)


def test_vocabulary_has_the_most_frequent_tokens_then_the_lowest(
    target: LlamaForCausalLM,
) -> None:
    answers = observe(target, [Conversation((9, 9, 9, 7, 7, 5), 1, True)])
    assert reduced_vocabulary(answers, 20, 2).tolist() == [7, 9]
    assert reduced_vocabulary(answers, 20, 5).tolist() == [0, 1, 5, 7, 9]


def test_training_lowers_the_loss_and_goes_on_where_it_stopped(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_training, "REDUCED_VOCABULARY", REDUCED)
    monkeypatch.setattr(head_training, "_BATCH_TOKENS", 128)
    answers = texts(target, 20)
    whole = train_head(target, answers, {"counting": answers[:4]}, 20, tmp_path / "whole", "head")
    fresh = TrainedHead(target, whole.target_ids)
    taught = teach(target, whole, answers)
    assert loss_of(whole, taught) < 0.9 * loss_of(fresh, taught)
    assert len((tmp_path / "whole" / "head-curve.jsonl").read_text().splitlines()) >= 10

    class Stopped(Exception):
        pass

    real, left = head_training.acceptance, iter(range(3))

    def stop_later(*arguments: object) -> Acceptance:
        if next(left, None) is None:
            raise Stopped
        return real(*arguments)

    monkeypatch.setattr(head_training, "acceptance", stop_later)
    with pytest.raises(Stopped):
        train_head(target, answers, {"counting": answers[:4]}, 20, tmp_path / "parts", "head")
    monkeypatch.setattr(head_training, "acceptance", real)
    resumed = train_head(target, answers, {"counting": answers[:4]}, 20, tmp_path / "parts", "head")
    for name, weight in whole.state_dict().items():
        assert torch.allclose(weight, resumed.state_dict()[name], atol=1e-5), name
    with pytest.raises(ValueError, match="other texts"):
        train_head(target, texts(target, 7, 30), {}, 1, tmp_path / "parts", "head")


@pytest.fixture
def _short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_text, "_CONVERSATIONS", 8)
    short = {kind: replace(one, message_tokens=24) for kind, one in own_text.KINDS.items()}
    monkeypatch.setattr(own_text, "KINDS", short)
    monkeypatch.setattr(own_text, "_ANSWER_TOKENS", 12)


@pytest.mark.usefixtures("_short_text")
@pytest.mark.parametrize("kind", own_text.KINDS)
def test_the_target_writes_both_sides_and_shards_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = model_path("target")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    zoo = PackedModel.load(path, dtype=torch.float32, device="cpu", kv_tokens=2048)
    verifier = NativeVerifier(zoo)
    ends = verifier.stop_token_ids[0]

    real = own_text.continued

    def ended(*arguments: object) -> list[list[int]]:
        return [row if row[-1] == ends else [*row, ends] for row in real(*arguments)]  # type: ignore[arg-type]

    monkeypatch.setattr(own_text, "continued", ended)
    write_shards(verifier, tokenizer, tmp_path, kind, 40)
    answers = read_shard(shard_path(tmp_path, kind, 0))
    assert answers
    assert all(0 < one.answer < len(one.tokens) and one.greedy for one in answers)
    monkeypatch.setattr(own_text, "write_conversations", lambda *_: pytest.fail("written again"))
    write_shards(verifier, tokenizer, tmp_path, kind, 40)

    target = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    seen = observed_shards(target, tmp_path, kind, held_out=True)
    assert [text.conversation for text in seen] == answers
    first = answers[0]
    foreseen = seen[0].choices[first.answer - 1 : len(first.tokens) - 2]
    assert tuple(foreseen.tolist()) == first.tokens[first.answer : -1]  # greedy; its end is ours
    monkeypatch.setattr("lab.zoo.target_states.observe", lambda *_: pytest.fail("read again"))
    assert len(observed_shards(target, tmp_path, kind, held_out=True)) == len(answers)


@pytest.mark.usefixtures("_short_text")
def test_the_command_writes_text_trains_and_leaves_a_head_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head_training, "REDUCED_VOCABULARY", REDUCED)
    command = ["zoo", "train-head", "--target", str(model_path("target")), "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*command, "--tokens", "400", "--epochs", "1"])
    zoo_command.main()
    assert str(tmp_path / "head") in capsys.readouterr().out
    head = Eagle3Head.load(tmp_path / "head", "cpu", torch.float32, model_path("target"))
    assert len(head.vocabulary) == REDUCED

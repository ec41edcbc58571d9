"""Small drafters that are trained here: they compute what the engine serves, learn, resume, and
count acceptance rightly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cluster.built_in_models import model_path
from engine.drafters.loading import load_model_drafter
from engine.drafters.reduced_checkpoint import load_reduced
from lab.zoo import __main__ as zoo_command
from lab.zoo import own_text, small_training
from lab.zoo.head_training import Acceptance
from lab.zoo.own_text import Conversation
from lab.zoo.small_model import SmallDrafter, SmallShape
from lab.zoo.small_training import SMALL, acceptance, batches, loss_of, train_small
from lab.zoo.target_states import ObservedText, observe
from tests.checkpoints import VOCAB

REDUCED = 60
SHAPE = SmallShape(hidden=16, layers=2, heads=2, kv_heads=1)


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
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        small_training,
        "fast_products",
        lambda: torch.autocast("cpu", torch.bfloat16, enabled=False),
    )
    monkeypatch.setattr(small_training, "REDUCED_VOCABULARY", REDUCED)
    monkeypatch.setattr(small_training, "_ROW_TOKENS", 64)


def texts(target: LlamaForCausalLM, count: int, length: int = 24) -> list[ObservedText]:
    """Each counts up from its own beginning, a pattern that can be learnt."""
    return observe(
        target,
        [
            Conversation(tuple((start + step) % 50 for step in range(length)), 6, True)
            for start in range(count)
        ],
    )


def test_it_computes_what_is_served(target: LlamaForCausalLM, tmp_path: Path) -> None:
    torch.manual_seed(1)
    drafter = SmallDrafter(target, torch.randperm(VOCAB)[:REDUCED].sort().values, SHAPE)
    for weight in drafter.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.3)
        weight.data = weight.bfloat16().float()  # as it is stored
    target.save_pretrained(tmp_path / "target")
    drafter.save(tmp_path / "small")
    served, reduced = load_reduced(
        "a", tmp_path / "small", tmp_path / "target", REDUCED, torch.float32
    )
    assert reduced.target_ids.tolist() == drafter.target_ids.tolist()
    tokens = torch.randint(0, VOCAB, (2, 20))
    with torch.no_grad():
        assert (served(tokens).logits - drafter(tokens)).abs().max() <= 1e-4


def test_rows_hold_whole_texts_and_every_text_once(target: LlamaForCausalLM) -> None:
    answers = texts(target, 7)
    for epoch in (0, 1):
        rows = [row for batch in batches(answers, epoch) for row in batch]
        assert all(sum(map(len, row)) <= 64 for row in rows)
        found = [text.conversation.tokens[0] for row in rows for text in row]
        assert sorted(found) == list(range(7))
    assert found != sorted(found)


def test_nothing_is_learnt_across_texts_or_from_padding(target: LlamaForCausalLM) -> None:
    short, long = texts(target, 2)[0], texts(target, 3, 40)[2]
    drafter = SmallDrafter(target, torch.arange(VOCAB), SHAPE)
    together = loss_of(drafter, [[short, long], [short]])
    # All logits are 0 at first: the loss is that of a uniform guess, whatever is padded.
    assert together.item() == pytest.approx(np.log(VOCAB), rel=1e-4)
    few = SmallDrafter(target, torch.arange(3), SHAPE)
    weights = small_training._weights(few, short)
    outside = ~torch.isin(short.choices, few.target_ids)
    assert outside.any()
    assert (weights[outside] == 0).all()
    assert weights[-1] == 0


def test_acceptance_is_that_of_greedy_chains(target: LlamaForCausalLM) -> None:
    (answers,) = texts(target, 1, 12)

    class Counting(torch.nn.Module):
        """Knows every token but those behind 8."""

        target_ids = torch.arange(VOCAB)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            following = torch.where(tokens == 8, 0, tokens + 1)
            return torch.nn.functional.one_hot(following, VOCAB).float()

    # The answer is 6 ... 11; behind its first token: 7, 8, then 9 by the target, 10, 11.
    found = acceptance(Counting(), [answers.conversation])
    assert found.tokens_per_forward == pytest.approx(5 / 2)
    assert found.agreement[0] == pytest.approx(4 / 5)


def test_training_lowers_the_loss_and_goes_on_where_it_stopped(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = texts(target, 20)
    held_out = [text.conversation for text in answers[:4]]
    whole = train_small(target, answers, held_out, 20, tmp_path / "whole", SMALL, SHAPE)
    fresh = SmallDrafter(target, whole.target_ids, SHAPE)
    assert loss_of(whole, [answers]) < 0.9 * loss_of(fresh, [answers])
    assert len((tmp_path / "whole" / "small-curve.jsonl").read_text().splitlines()) >= 10

    class Stopped(Exception):
        pass

    real, left = small_training.acceptance, iter(range(3))

    def stop_later(*arguments: object) -> Acceptance:
        if next(left, None) is None:
            raise Stopped
        return real(*arguments)

    monkeypatch.setattr(small_training, "acceptance", stop_later)
    with pytest.raises(Stopped):
        train_small(target, answers, held_out, 20, tmp_path / "parts", SMALL, SHAPE)
    monkeypatch.setattr(small_training, "acceptance", real)
    resumed = train_small(target, answers, held_out, 20, tmp_path / "parts", SMALL, SHAPE)
    for name, weight in whole.state_dict().items():
        assert torch.allclose(weight, resumed.state_dict()[name], atol=1e-5), name
    with pytest.raises(ValueError, match="other texts"):
        train_small(target, texts(target, 7, 30), held_out, 1, tmp_path / "parts", SMALL, SHAPE)


def test_the_command_leaves_a_drafter_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model_path("target")
    command = ["zoo", "train-drafter", "--target", str(path), "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="no text to train on; let train-head write some"):
        zoo_command.main()
    answers = [Conversation(tuple(range(start, start + 30)), 6, True) for start in range(5, 25)]
    for index in (0, 1):
        own_text._write(own_text.shard_path(tmp_path, own_text.GENERAL, index), answers)
    monkeypatch.setattr("sys.argv", [*command, "--epochs", "1"])
    zoo_command.main()
    assert str(tmp_path / SMALL) in capsys.readouterr().out
    loaded = load_model_drafter(
        SMALL,
        tmp_path / SMALL,
        dtype=None,
        device="cpu",
        kv_tokens=512,
        target_vocab_size=2048,
        target=path,
    )
    assert loaded.drafter.name == SMALL

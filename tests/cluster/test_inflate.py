"""Inflation: the large model computes what the small one does, and has the size asked for."""

import threading
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from cluster.built_in_models import TARGET, model_path
from cluster.checkpoints import architecture
from cluster.inflate import inflate_to_cache, inflated_config

SOURCE = model_path(TARGET)
SMALL = AutoConfig.from_pretrained(SOURCE)


@pytest.mark.parametrize("params", [5_000_000, 90_000_000])
def test_logits_and_greedy_tokens_are_kept(params: int, tmp_path: Path) -> None:
    small = AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float32)
    path = inflate_to_cache(SOURCE, params, tmp_path)
    large = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert large.num_parameters() == pytest.approx(params, rel=0.1)
    torch.manual_seed(0)
    tokens = torch.randint(SMALL.vocab_size, (2, 96))
    with torch.inference_mode():
        expected, got = small(tokens).logits, large(tokens).logits
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        prompt = tokens[:1, :16]
        answers = [m.generate(prompt, max_new_tokens=24, do_sample=False) for m in (small, large)]
    assert torch.equal(*answers)


def test_new_weights_are_not_zero_where_they_may_be_random(tmp_path: Path) -> None:
    path = inflate_to_cache(SOURCE, 30_000_000, tmp_path)
    large = AutoModelForCausalLM.from_pretrained(path)
    assert large.num_parameters() > SMALL.vocab_size * SMALL.hidden_size * 10
    zeros = sum(int((p == 0).sum()) for p in large.parameters())
    assert zeros < 0.5 * large.num_parameters()


@pytest.mark.parametrize("params", [5_000_000, 90_000_000, 350_000_000, 850_000_000, 7_000_000_000])
def test_size_is_within_a_tenth(params: int) -> None:
    larger = architecture(SOURCE, params)
    assert larger.parameters() == pytest.approx(params, rel=0.1)
    assert larger.head_dim == SMALL.head_dim
    assert larger.hidden_size == larger.num_attention_heads * larger.head_dim


def test_the_number_of_parameters_is_that_of_transformers() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(inflated_config(SOURCE, 350_000_000))
    assert architecture(SOURCE, 350_000_000).parameters() == model.num_parameters()


def test_a_size_below_the_targets_own_is_refused() -> None:
    with pytest.raises(ValueError, match="params"):
        architecture(SOURCE, 1_000_000)


def test_concurrent_callers_get_one_complete_copy(tmp_path: Path) -> None:
    found: list[Path] = []
    callers = [
        threading.Thread(target=lambda: found.append(inflate_to_cache(SOURCE, 5_000_000, tmp_path)))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [found[0]]

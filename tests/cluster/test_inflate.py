"""Inflation: the large model computes what the small one does, and has the size asked for."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cluster.built_in_models import TARGET, model_path
from cluster.checkpoints import architecture
from cluster.inflate import inflate_to_cache

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


def test_a_size_below_the_targets_own_is_refused() -> None:
    with pytest.raises(ValueError, match="params"):
        architecture(SOURCE, 1_000_000)

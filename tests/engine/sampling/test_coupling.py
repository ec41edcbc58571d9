"""With shared noise, drafts are accepted at least as often as the coupling bound demands.

Daliri, Musco, Suresh 2024: P(argmax(log p + g) = argmax(log q + g)) >= (1 - TV) / (1 + TV).
"""

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.prompts.corpus import load_corpus
from cluster.built_in_models import TARGET, model_path
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row, choose

ROWS, ROW_TOKENS = 20, 1024
"""20,480 positions: enough to resolve the bound to three standard errors."""
SEED = 11


@cache
def logits_of(name: str) -> torch.Tensor:
    """Logits on held-out text: [rows, positions, vocabulary]."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    corpus = load_corpus(held_out=True)
    text = "\n".join(text[:3000] for text in (*corpus.code, *corpus.prose))
    ids = tokenizer(text, verbose=False)["input_ids"][: ROWS * ROW_TOKENS]
    model = AutoModelForCausalLM.from_pretrained(model_path(name), dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor(ids).view(ROWS, ROW_TOKENS), use_cache=False).logits


def transformed(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distributions that sampling draws from, written from the definition of top-p."""
    probability = (logits / params.temperature).softmax(-1)
    ranked, order = probability.sort(stable=True, dim=-1, descending=True)
    ranked[ranked.cumsum(-1) - ranked >= params.top_p] = 0
    kept = torch.zeros_like(probability).scatter(-1, order, ranked)
    return kept / kept.sum(-1, keepdim=True)


@cache
def chosen(name: str, temperature: float, top_p: float, seed: int) -> NDArray[np.int64]:
    """A token for each position: [rows, positions]."""
    params = SamplingParams(temperature, top_p=top_p)
    tokens = []
    for number, logits in enumerate(logits_of(name)):
        first = number * ROW_TOKENS
        rows = [Row(params, seed, first + i, 0, ()) for i in range(ROW_TOKENS)]
        tokens.append(choose(logits, rows))
    return np.array(tokens)


@pytest.mark.parametrize("drafter", ["tiny", "prose"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9)])
def test_acceptance_meets_the_coupling_bound(
    drafter: str, temperature: float, top_p: float
) -> None:
    params = SamplingParams(temperature, top_p=top_p)
    tokens = chosen(TARGET, temperature, top_p, SEED)
    share = (tokens == chosen(drafter, temperature, top_p, SEED)).reshape(-1)
    by_chance = tokens == chosen(drafter, temperature, top_p, SEED + 1)
    distance = []
    for target, proposed in zip(logits_of(TARGET), logits_of(drafter), strict=True):
        gap = transformed(target, params) - transformed(proposed, params)
        distance.append(0.5 * gap.abs().sum(-1).numpy())
    far = np.concatenate(distance)
    slack = 3 * share.std() / np.sqrt(len(share))
    bound = ((1 - far) / (1 + far)).mean()
    assert len(share) >= 20_000
    assert share.mean() >= bound - slack
    # Correct samplers cannot agree more often than the mass that both distributions share.
    assert share.mean() <= (1 - far).mean() + slack
    # The bound is not trivial: independent noise does not meet it.
    assert by_chance.mean() < bound - slack

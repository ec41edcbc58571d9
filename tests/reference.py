"""The independent oracle: a stock Hugging Face model, eager, one request, everything recomputed.

Written from the definitions in fp64; of the engine it uses only the noise.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from engine.sampling.noise import gumbel

if TYPE_CHECKING:  # for the type checker only; any object with these fields works
    from engine.sampling.params import SamplingParams

Scores = NDArray[np.float64]


def forward(model: PreTrainedModel, tokens: list[int]) -> Scores:
    """The logits of every position, without cache or batch."""
    assert model.config._attn_implementation == "eager"
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits.float().double().numpy()


def perturbed(
    logits: Scores, tokens: list[int], prompt_len: int, params: "SamplingParams", seed: int
) -> Scores:
    """The scores log p + g, up to a constant, of all tokens after `tokens`."""
    scores = logits.copy()
    position, output = len(tokens), tokens[prompt_len:]
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    if len(output) < params.min_tokens:
        scores[list(params.stop_token_ids)] = -np.inf
    for token in set(tokens):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(output):
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if params.temperature == 0:
        return scores
    scores = scores / params.temperature
    scores[softmax(scores) < params.min_p * softmax(scores).max()] = -np.inf
    order = np.lexsort((np.arange(len(scores)), -scores))
    if params.top_k:
        scores[order[params.top_k :]] = -np.inf
    if params.top_p < 1:
        probability = softmax(scores)[order]
        mass_before = np.cumsum(probability) - probability
        scores[order[mass_before >= params.top_p]] = -np.inf
    return scores + gumbel(seed, position, np.arange(len(scores)))


def softmax(scores: Scores) -> Scores:
    weight = np.exp(scores - scores.max())
    return weight / weight.sum()


def gap(scores: Scores) -> float:
    """The difference between the two best scores; 0 is a tie."""
    return float(np.diff(np.sort(scores)[-2:])[0])


def generate(
    model: PreTrainedModel, prompt: list[int], params: "SamplingParams", seed: int
) -> list[int]:
    """The output tokens, up to a stop token (included) or max_tokens."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + params.max_tokens:
        scores = perturbed(forward(model, tokens)[-1], tokens, len(prompt), params, seed)
        tokens.append(int(scores.argmax()))
        if tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]

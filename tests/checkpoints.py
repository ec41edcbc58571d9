"""Small random models for tests, built without downloads."""

import copy
from functools import cache

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

VOCAB = 97
CONTEXT = 256


def llama(
    *,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = VOCAB,
    context: int = CONTEXT,
    seed: int = 0,
) -> PreTrainedModel:
    """A Llama whose next-token distributions are neither flat nor certain."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.2,
    )
    return AutoModelForCausalLM.from_config(config).eval().float()


@cache
def eager_llama(**shape: int) -> PreTrainedModel:
    """The same as a reference, which nothing may change."""
    model = llama(**shape)
    model.set_attn_implementation("eager")
    return model


def blurred(model: PreTrainedModel, noise: float, seed: int = 0) -> PreTrainedModel:
    """A drafter that often agrees with `model`: the same weights plus noise."""
    generator = torch.Generator().manual_seed(seed)
    drafter = copy.deepcopy(model)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return drafter

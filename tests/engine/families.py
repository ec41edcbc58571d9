"""A tiny random model of each family under test, built without downloads."""

from copy import deepcopy

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

VOCAB = 97
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
_GQA = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 8}
_GEMMA = {**_GQA, "query_pre_attn_scalar": 8, "sliding_window": 7}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]

SUPPORTED: dict[str, PreTrainedConfig] = {
    "llama": hf.LlamaConfig(**_GQA),
    "qwen2": hf.Qwen2Config(**_GQA),
    "qwen3": hf.Qwen3Config(**_GQA),
    "mistral": hf.MistralConfig(**_GQA, sliding_window=9),
    "gemma3": hf.Gemma3TextConfig(**_GEMMA, layer_types=_ALTERNATING),
    "phi3": hf.Phi3Config(**_GQA),
    "olmo2": hf.Olmo2Config(**_GQA),
    "granite": hf.GraniteConfig(**_GQA, logits_scaling=2.0),
    "mixtral": hf.MixtralConfig(**_GQA, num_local_experts=4),
    "gpt_neox": hf.GPTNeoXConfig(**_SHAPE),
    "gpt2": hf.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
    ),
}


def build(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    # A copy, as some tests change the config of their model.
    return AutoModelForCausalLM.from_config(deepcopy(config)).eval().float()

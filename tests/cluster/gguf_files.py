"""Small models with a tokenizer, and the GGUF files that llama.cpp would write of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, dequantize, quantize
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["Hello, wörld", "  two  spaces\n\tand 12345 x²", "<|im_start|>user\nhi<|im_end|>"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
HEADS = {"q_proj": 4, "k_proj": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )


PRE_TOKENIZERS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    ),
    # As in the tokenizer.json files of Qwen2.5 and Llama 3.
    "qwen2": _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "llama-bpe": _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def tokenizer(splitting: str = "smollm") -> Tokenizer:
    made = Tokenizer(models.BPE())
    if splitting == "qwen2":
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = PRE_TOKENIZERS[splitting]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS * 4, trainer)
    return made


CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def model(vocab: int, kind: str = "llama") -> PreTrainedModel:
    torch.manual_seed(0)
    config_class, model_class = CLASSES[kind]
    config = config_class(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32 if kind == "qwen3" else 16,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
        tie_word_embeddings=True,
    )
    made = model_class(config).eval()
    for name, weight in made.state_dict().items():
        if name.endswith("bias") or "norm" in name:  # which are all 0 or 1 at first
            weight.copy_(torch.rand(weight.shape))
    return made


def as_llama_cpp(kind: str, name: str, weight: Tensor) -> tuple[str, np.ndarray]:
    """Its names, and of Llamas rotated pairs side by side (convert_hf_to_gguf.py, `permute`)."""
    array = weight.numpy()
    for part, heads in HEADS.items():
        if part in name and kind == "llama":
            rows, columns = array.shape
            halves = array.reshape(heads, 2, rows // heads // 2, columns)
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
    for theirs, its in NAMES.items():
        name = name.replace(theirs, its)
    return name, array


def write(
    file: Path,
    of: PreTrainedModel,
    tokens: Tokenizer,
    architecture: str | None = None,
    splitting: str = "smollm",
    fields: Mapping[str, int] | None = None,
) -> None:
    """Rounds the model's large weights to what the file can hold of them. `architecture`: another
    name than the model's own; `fields`: further ones of the file."""
    config = of.config
    kind = config.model_type
    writer = GGUFWriter(file, architecture or kind)
    if kind == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5e4)
    vocab = tokens.get_vocab()
    ordered = sorted(vocab, key=lambda token: vocab[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(ordered)
    types = [TokenType.CONTROL if one in SPECIAL else TokenType.NORMAL for one in ordered]
    writer.add_token_types(types)
    merges = json.loads(tokens.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in (fields or {}).items():
        writer.add_uint32(name, value)
    for name, weight in of.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        its, array = as_llama_cpp(kind, name, weight)
        numbers = GGMLQuantizationType.F32
        if array.ndim == 2:
            numbers = GGMLQuantizationType.Q8_0 if "embd" in its else GGMLQuantizationType.Q4_1
            stored = quantize(array, numbers)
            kept = dequantize(stored, numbers)
            # Quantisation rounds within a row, so rows may be put back in their order.
            with torch.no_grad():
                weight.copy_(as_transformers(kind, name, torch.from_numpy(kept)))
            array = stored
        writer.add_tensor(its, array, raw_dtype=numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_transformers(kind: str, name: str, weight: Tensor) -> Tensor:
    for part, heads in HEADS.items():
        if part in name and kind == "llama":
            pairs = weight.unflatten(0, (heads, -1, 2))
            return pairs.transpose(1, 2).reshape(weight.shape)
    return weight

"""A small Llama with its tokenizer, and the GGUF file that llama.cpp would write of it."""

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, dequantize, quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["Hello, wörld", "  two  spaces\n\tand 12345 x²", "<|im_start|>user\nhi<|im_end|>"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
HEADS = {"q_proj": 4, "k_proj": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
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


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS * 4, trainer)
    return made


def model(vocab: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def as_llama_cpp(name: str, weight: Tensor) -> tuple[str, np.ndarray]:
    """Its names, and rotated pairs side by side (convert_hf_to_gguf.py, `permute`)."""
    array = weight.numpy()
    for part, heads in HEADS.items():
        if part in name:
            rows, columns = array.shape
            halves = array.reshape(heads, 2, rows // heads // 2, columns)
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
    for theirs, its in NAMES.items():
        name = name.replace(theirs, its)
    return name, array


def write(file: Path, of: LlamaForCausalLM, tokens: Tokenizer, architecture: str = "llama") -> None:
    """Rounds the model's large weights to what the file can hold of them."""
    writer = GGUFWriter(file, architecture)
    config = of.config
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
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(ordered)
    kinds = [TokenType.CONTROL if one in SPECIAL else TokenType.NORMAL for one in ordered]
    writer.add_token_types(kinds)
    merges = json.loads(tokens.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in of.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        its, array = as_llama_cpp(name, weight)
        kind = GGMLQuantizationType.F32
        if array.ndim == 2:
            kind = GGMLQuantizationType.Q8_0 if "embd" in its else GGMLQuantizationType.Q4_1
            stored = quantize(array, kind)
            kept = dequantize(stored, kind)
            # Quantisation rounds within a row, so rows may be put back in their order.
            with torch.no_grad():
                weight.copy_(as_transformers(name, torch.from_numpy(kept)))
            array = stored
        writer.add_tensor(its, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_transformers(name: str, weight: Tensor) -> Tensor:
    for part, heads in HEADS.items():
        if part in name:
            pairs = weight.unflatten(0, (heads, -1, 2))
            return pairs.transpose(1, 2).reshape(weight.shape)
    return weight

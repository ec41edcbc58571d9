"""Converts a Llama in one GGUF file to a Hugging Face checkpoint.

Weights are dequantised to float32, which is exact. transformers reads GGUF as well, but takes half
a minute, refuses to save what it has read, and omits that SmolLM's tokenizer splits digits.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Weight = NDArray[np.float32]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""GGUF's type number for control tokens, which have no text."""


class UnsupportedGguf(ValueError):
    """The file's architecture or tokenizer is not supported."""


def convert(file: Path, destination: Path) -> None:
    """Writes config.json, weights and tokenizer into the directory, which is created."""
    write_headers(file, destination)
    write_weights(file, destination / "model.safetensors")


def parameters_in(file: Path) -> int:
    """The number of weights."""
    return sum(int(tensor.n_elements) for tensor in _open(file).tensors)


def write_headers(file: Path, destination: Path) -> None:
    """Writes config.json and tokenizer into the directory, which is created."""
    metadata, config = _read(_open(file), file)
    destination.mkdir(parents=True)
    _write_tokenizer(metadata, config, destination)
    tokens = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(destination / "generation_config.json", tokens)
    _write(destination / "config.json", config)


def write_weights(file: Path, destination: Path) -> None:
    reader = _open(file)
    _, config = _read(reader, file)
    save_file(dict(_weights(reader, config)), destination, {"format": "pt"})


def _read(reader: GGUFReader, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's metadata, and the config.json that they make."""
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    for field, wanted in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if metadata.get(field) != wanted:
            raise UnsupportedGguf(
                f"{file}: {field} is {metadata.get(field)}; only {wanted} is read, other models as "
                "directories with a Hugging Face checkpoint"
            )
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    try:
        return metadata, _config(metadata, tied=tied)
    except KeyError as error:
        raise UnsupportedGguf(f"{file}: there is no field {error}") from error


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except ValueError as error:
        raise UnsupportedGguf(f"{file} is no GGUF file: {error}") from error


def _config(metadata: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": metadata["llama.context_length"],
        "hidden_size": hidden,
        "hidden_act": "silu",
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        "tie_word_embeddings": tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _weights(reader: GGUFReader, config: Mapping[str, Any]) -> Iterator[tuple[str, Weight]]:
    """The weights, by their names in transformers."""
    heads_of = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name in _TOP:
            yield _TOP[tensor.name], weight
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in heads_of:
            weight = _in_halves(weight, heads_of[part])
        yield f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}", weight


def _in_halves(weight: Weight, heads: int) -> Weight:
    """Reorders rows for rotary position embeddings, which rotate pairs of rows: neighbours in GGUF,
    rows half a head apart in transformers."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_tokenizer(
    metadata: Mapping[str, Any], config: Mapping[str, Any], destination: Path
) -> None:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer.save(str(destination / "tokenizer.json"))
    _write(
        destination / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "bos_token": tokens[config["bos_token_id"]],
            "eos_token": tokens[config["eos_token_id"]],
            "pad_token": tokens[config["pad_token_id"]],
            "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        },
    )
    if "tokenizer.chat_template" in metadata:
        (destination / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"])


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")

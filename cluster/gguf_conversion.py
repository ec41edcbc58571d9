"""Converts a Llama, Qwen2 or Qwen3 in one GGUF file to a Hugging Face checkpoint.

Weights are dequantised to float32, which is exact. transformers reads GGUF as well, but takes half
a minute, refuses to save what it has read, and omits that SmolLM's tokenizer splits digits.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from cluster.checkpoint_files import QUANTIZED
from cluster.gguf_reader import UnsupportedGguf, naming, open_gguf

Weight = NDArray[np.float32]
_Rows = TypeVar("_Rows", NDArray[np.float32], NDArray[np.uint8])

_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The model types that are read, by which GGUF and transformers name them, and their classes."""
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = {"qwen2": "", "llama-bpe": "{1,3}"}
"""By the file's name for how text is split before merging: how many digits stay together."""
_SMOLLM = "smollm"
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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
"""GGUF's type numbers for tokens without text, for tokens that are never split, and for rows of the
embedding that no token uses."""


def convert(file: Path, destination: Path) -> None:
    """Writes config.json, weights and tokenizer into the directory, which is created."""
    write_headers(file, destination)
    write_weights(file, destination / "model.safetensors")


def parameters_in(file: Path) -> int:
    """The number of weights."""
    with naming(file):
        return sum(int(tensor.n_elements) for tensor in open_gguf(file).tensors)


def matrices_in(file: Path) -> list[tuple[str, int]]:
    """The types and bytes of the matrices."""
    with naming(file):
        return [
            (tensor.tensor_type.name, int(tensor.n_bytes))
            for tensor in open_gguf(file).tensors
            if len(tensor.shape) == 2
        ]


def write_headers(file: Path, destination: Path) -> None:
    """Writes config.json and tokenizer into the directory, which is created."""
    with naming(file):
        metadata, config = _read(open_gguf(file), file)
        destination.mkdir(parents=True)
        _write_tokenizer(metadata, config, destination)
        tokens = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write(destination / "generation_config.json", tokens)
        _write(destination / "config.json", config)


def write_weights(file: Path, destination: Path) -> None:
    """The weights as floats, and beside them the file's own blocks (`QUANTIZED`)."""
    with naming(file):
        reader = open_gguf(file)
        _, config = _read(reader, file)
        weights = dict(_weights(reader, config))
        blocks, kinds = _blocks(reader, config)
    save_file(blocks, destination.with_name(QUANTIZED), kinds)
    save_file(weights, destination, {"format": "pt"})


def _read(reader: GGUFReader, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's metadata, and the config.json that they make."""
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    if metadata.get("split.count", 1) > 1:  # all that parts after the first say
        raise UnsupportedGguf(
            f"{file} is one of {metadata['split.count']} parts: put them together with "
            "llama.cpp's `llama-gguf-split --merge`"
        )
    for field, known in (
        ("general.architecture", _MODEL_TYPES),
        ("tokenizer.ggml.model", ("gpt2",)),
        ("tokenizer.ggml.pre", (_SMOLLM, *_DIGITS)),
        (f"{metadata.get('general.architecture')}.rope.scaling.type", (None, "none")),
    ):
        if metadata.get(field) not in known:
            readable = ", ".join(str(one) for one in known)
            raise UnsupportedGguf(
                f"{file}: {field} is {metadata.get(field)}; only {readable} is read, other models "
                "as directories with a Hugging Face checkpoint"
            )
    names = [tensor.name for tensor in reader.tensors]
    has_biases = metadata["general.architecture"] == "qwen2"
    unknown = [
        name for name in names if _name(name) is None or (name.endswith(".bias") and not has_biases)
    ]
    if unknown:
        raise UnsupportedGguf(f"{file}: no place is known for the tensors {', '.join(unknown)}")
    tied = "output.weight" not in names
    try:
        return metadata, _config(metadata, tied=tied)
    except KeyError as error:
        raise UnsupportedGguf(f"{file}: there is no field {error}") from error


def _config(metadata: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    kind = metadata["general.architecture"]
    heads = metadata[f"{kind}.attention.head_count"]
    hidden = metadata[f"{kind}.embedding_length"]
    rope = {"rope_type": "default", "rope_theta": metadata[f"{kind}.rope.freq_base"]}
    return {
        "architectures": [_MODEL_TYPES[kind]],
        "model_type": kind,
        "dtype": "float32",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": metadata[f"{kind}.context_length"],
        "hidden_size": hidden,
        "hidden_act": "silu",
        "intermediate_size": metadata[f"{kind}.feed_forward_length"],
        "num_hidden_layers": metadata[f"{kind}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": metadata.get(f"{kind}.attention.key_length", hidden // heads),
        "rms_norm_eps": metadata[f"{kind}.attention.layer_norm_rms_epsilon"],
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _stops(metadata),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _stops(metadata: Mapping[str, Any]) -> int | list[int]:
    """The end of a text, and of a turn or message where the file names one."""
    first: int = metadata["tokenizer.ggml.eos_token_id"]
    others = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eot", "eom")]
    stops = list(dict.fromkeys([first, *(stop for stop in others if stop is not None)]))
    return first if len(stops) == 1 else stops


def _name(tensor: str) -> str | None:
    """The tensor's name in transformers; None if it has no place there."""
    if tensor in _TOP:
        return _TOP[tensor]
    match tensor.split("."):
        case ["blk", layer, part, kind] if part in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}"
    return None


def _weights(reader: GGUFReader, config: Mapping[str, Any]) -> Iterator[tuple[str, Weight]]:
    """The weights, by their names in transformers."""
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        yield str(_name(tensor.name)), _as_in_transformers(tensor.name, weight, config)


def _blocks(
    reader: GGUFReader, config: Mapping[str, Any]
) -> tuple[dict[str, NDArray[np.uint8]], dict[str, str]]:
    """The matrices as they are stored, [outputs, bytes], and their types, by their modules'
    names."""
    blocks: dict[str, NDArray[np.uint8]] = {}
    kinds: dict[str, str] = {}
    for tensor in reader.tensors:
        if len(tensor.shape) == 2:
            stored = np.ascontiguousarray(tensor.data).view(np.uint8)
            module = str(_name(tensor.name)).removesuffix(".weight")
            blocks[module] = _as_in_transformers(tensor.name, stored, config)
            kinds[module] = tensor.tensor_type.name
    return blocks, kinds


def _as_in_transformers(tensor: str, weight: _Rows, config: Mapping[str, Any]) -> _Rows:
    heads_of = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = tensor.split(".")[-2]
    if config["model_type"] == "llama" and part in heads_of:
        return _in_halves(weight, heads_of[part])
    return weight


def _in_halves(weight: _Rows, heads: int) -> _Rows:
    """Reorders rows for rotary position embeddings, which rotate pairs of rows: neighbours in GGUF,
    rows half a head apart in transformers. Only the files of Llamas do so."""
    pairs = weight.reshape(heads, len(weight) // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _write_tokenizer(
    metadata: Mapping[str, Any], config: Mapping[str, Any], destination: Path
) -> None:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    splitting: str = metadata["tokenizer.ggml.pre"]
    numbered = [one for one in enumerate(tokens) if types[one[0]] != _UNUSED]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in numbered},
            merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
        )
    )
    if splitting == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(tokens[n], normalized=False) for n, _ in numbered if types[n] == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(tokens[n], normalized=False) for n, _ in numbered if types[n] == _USER_DEFINED]
    )
    bos = config["bos_token_id"]
    if metadata.get("tokenizer.ggml.add_bos_token", splitting == "llama-bpe") and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]} $B",
            special_tokens=[(tokens[bos], bos)],
        )
    tokenizer.save(str(destination / "tokenizer.json"))
    special = {
        "bos_token": bos,
        "eos_token": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token": config["pad_token_id"],
        "unk_token": metadata.get("tokenizer.ggml.unknown_token_id"),
    }
    _write(
        destination / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            **{name: tokens[number] for name, number in special.items() if number is not None},
        },
    )
    if "tokenizer.chat_template" in metadata:
        (destination / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"])


def _pre_tokenizer(splitting: str) -> pre_tokenizers.PreTokenizer:
    """What splits text before tokens are merged, by the file's name for it."""
    if splitting == _SMOLLM:
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = Regex(_SPLIT % _DIGITS[splitting])
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")

"""Checkpoints as far as a plan reads them: config.json and headers, without weights."""

import json
from pathlib import Path
from typing import Any

# For each: hidden, intermediate, layers, heads, parameters.
_QWEN3 = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-0.6B-code": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-0.6B-maths": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 1_720_000_000),
    "Qwen3-4B": (2560, 9728, 36, 32, 4_020_000_000),
    "Qwen3-8B": (4096, 12288, 36, 32, 8_190_000_000),
    "Qwen3-32B": (5120, 25600, 64, 64, 32_760_000_000),
}
_LLAMA3 = {
    "Llama-3.2-1B-Instruct": (2048, 8192, 16, 32, 1_236_000_000),
    "Llama-3.3-70B-Instruct": (8192, 28672, 80, 64, 70_554_000_000),
}
_HEAD = "Qwen3-8B-speculator.eagle3"
"""The head of Qwen3-8B lacks the embeddings and the output matrix, which a plan counts all the
same."""
VOCABULARY = 151_936
CONTEXT = 40_960


def write_models(folder: Path) -> None:
    """The models that the recipes name."""
    for name, shape in _QWEN3.items():
        _write_shape(folder / name, shape, VOCABULARY, CONTEXT, head_dim=128)
    for name, shape in _LLAMA3.items():
        hidden, heads = shape[0], shape[3]
        _write_shape(folder / name, shape, 128_256, 131_072, head_dim=hidden // heads)
    hidden, intermediate, _, heads, _ = _QWEN3["Qwen3-8B"]
    layer = _sizes((hidden, intermediate, 1, heads), VOCABULARY, CONTEXT, head_dim=128)
    head = {"speculators_model_type": "eagle3", "draft_vocab_size": 32_000}
    write(folder / _HEAD, 268_000_000, transformer_layer_config=layer, **head)


def _write_shape(
    path: Path, shape: tuple[int, ...], vocabulary: int, context: int, head_dim: int
) -> None:
    *sizes, parameters = shape
    write(path, parameters, **_sizes(tuple(sizes), vocabulary, context, head_dim))


def _sizes(shape: tuple[int, ...], vocabulary: int, context: int, head_dim: int) -> dict[str, int]:
    hidden, intermediate, layers, heads = shape
    return {
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
    }


def write(path: Path, parameters: int, **config: Any) -> Path:
    """The weights are a hole in a sparse file."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    tensor = {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}
    header = json.dumps({"weights": tensor}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2 * parameters)
    return path

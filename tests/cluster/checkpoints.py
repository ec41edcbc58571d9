"""Checkpoints as far as a plan reads them: config.json and headers, with no weights behind them."""

import json
from pathlib import Path

_QWEN3 = {
    # hidden, intermediate, layers, heads, parameters
    "Qwen3-0.6B": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-0.6B-code": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-0.6B-maths": (1024, 3072, 28, 16, 596_000_000),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 1_720_000_000),
    "Qwen3-4B": (2560, 9728, 36, 32, 4_020_000_000),
    "Qwen3-8B": (4096, 12288, 36, 32, 8_190_000_000),
    "Qwen3-32B": (5120, 25600, 64, 64, 32_760_000_000),
}
VOCABULARY = 151_936
CONTEXT = 40_960


def write_qwen3(folder: Path) -> None:
    """The family that the topologies in cluster/ name."""
    for name, (hidden, intermediate, layers, heads, parameters) in _QWEN3.items():
        write(
            folder / name,
            parameters,
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=8,
            head_dim=128,
        )


def write(path: Path, parameters: int, **config: int) -> Path:
    """The weights are a hole in a sparse file."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    tensor = {
        "dtype": "BF16",
        "shape": [parameters],
        "data_offsets": [0, 2 * parameters],
    }
    header = json.dumps({"weights": tensor}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2 * parameters)
    return path

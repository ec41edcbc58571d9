"""Reads what a config check needs from a checkpoint's files (config.json, safetensors headers,
tokenizer) without loading the model."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from cluster.architecture import Architecture
from cluster.checkpoint_files import names_checkpoint, read_json, weight_files

_OTHER_NAMES = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
"""GPT-2's field names, which some families use."""


_NEEDED = (
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_EMBEDDINGS, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_MOST = 2**31 - 1
FETCH_AGAIN = "fetch it again; of a git clone, with `git lfs pull`"
_HEADS_LAYER = "transformer_layer_config"
"""Where a config of speculators has the sizes of the head's layer."""
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output")
"""Options of EAGLE-3 variants that other engines support."""


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """What the config of an EAGLE-3 head in the `speculators` format contains beside its layer's
    sizes."""

    aux_layers: tuple[int, ...]
    """The target's layers whose hidden states it reads (engine/hidden_states.py)."""
    draft_vocab_size: int
    target_hidden_size: int
    norm_before_residual: bool


@names_checkpoint
def architecture(path: Path, inflate_to: int | None = None) -> Architecture:
    """The model's sizes; `inflate_to`: those after inflating it to about so many parameters."""
    config = read_json(path / "config.json")
    text = config.get("text_config") or config.get(_HEADS_LAYER, config)
    if any(_size(text, field) is None for field in _NEEDED):
        text = {**_of_its_class(path), **text}

    def number(field: str, otherwise: int | None = None) -> int:
        value = _size(text, field) or otherwise
        if value is None:
            raise ValueError(f"{path / 'config.json'} has no {field}: is it a causal LM's?")
        if not 1 <= value <= _MOST:
            raise ValueError(f"{path / 'config.json'}: {field} is {value}; fetch it again")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    own = Architecture(
        vocab_size=number("vocab_size"),
        max_position_embeddings=number("max_position_embeddings"),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size", 4 * hidden),
        num_hidden_layers=number("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", hidden // heads),
    )
    return own if inflate_to is None else own.inflated(inflate_to)


def _size(config: Mapping[str, Any], field: str) -> int | None:
    value = config.get(field, config.get(_OTHER_NAMES.get(field, "")))
    return value if isinstance(value, int) else None


def _of_its_class(path: Path) -> Mapping[str, Any]:
    """With the sizes that config.json leaves to its class in transformers, as Gemma 3's does; empty
    if there is no such class."""
    from transformers import AutoConfig  # takes a second; few configs need it

    try:
        text: Mapping[str, Any] = (
            AutoConfig.from_pretrained(path, trust_remote_code=False)
            .get_text_config(decoder=True)
            .to_dict()
        )
    except Exception:  # the config may hold anything, and its class check it or not
        return {}
    return text


@names_checkpoint
def is_head(path: Path) -> bool:
    """Whether the checkpoint is a head of another model, or has a reduced vocabulary as a head
    may, and so is no model by itself."""
    config = read_json(path / "config.json")
    reduced = config.get("draft_vocab_size") not in (None, config.get("vocab_size"))
    return reduced or _HEADS_LAYER in config


def weights_of_target(path: Path, draft_vocab_size: int) -> int:
    """How many weights a head takes from its target because its own checkpoint lacks them. While
    its files are not on this machine, its embeddings count among these, as with most heads."""
    names = weight_shapes(path)
    own = architecture(path)
    rows = 0 if _with_ending(names, _EMBEDDINGS) else own.vocab_size
    if names and not _with_ending(names, _OUTPUT):
        rows += draft_vocab_size
    return rows * own.hidden_size


@names_checkpoint
def eagle3_shape(path: Path, target_layers: int | None = None) -> Eagle3Shape:
    """`target_layers`: how many the target has, for heads that read the usual ones. Raises
    ValueError for a checkpoint that is no EAGLE-3 head, or a variant that is not supported."""
    config = read_json(path / "config.json")
    kind, layer = config.get("speculators_model_type"), config.get(_HEADS_LAYER)
    if kind != "eagle3" or not isinstance(layer, dict):
        raise ValueError(f"{path} is no EAGLE-3 head in the format of speculators")
    if layer.get("model_type", "llama") != "llama" or layer.get("num_hidden_layers", 1) != 1:
        raise ValueError(f"{path}: only heads of one Llama layer are supported")
    variants = [name for name in _UNSUPPORTED if config.get(name)]
    if variants:
        raise ValueError(f"{path}: {', '.join(variants)}: this variant is not supported")
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    if not layers:
        if target_layers is None:
            raise ValueError(f"{path}: eagle_aux_hidden_state_layer_ids are missing")
        layers = (2, target_layers // 2, target_layers - 3)
    own = architecture(path)
    outputs = config.get("draft_vocab_size") or own.vocab_size
    if outputs > own.vocab_size:
        raise ValueError(f"{path}: draft_vocab_size is {outputs}, vocab_size {own.vocab_size}")
    return Eagle3Shape(
        tuple(layers),
        outputs,
        config.get("target_hidden_size") or own.hidden_size,
        config.get("norm_before_residual", True),
    )


def parameters(path: Path) -> int | None:
    """The number of weights in the checkpoint; None if it has no safetensors."""
    shapes = weight_shapes(path)
    return sum(map(math.prod, shapes.values())) if shapes else None


def weight_shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of all weights in the checkpoint's safetensors, by name."""
    shapes: dict[str, list[int]] = {}
    for file in weight_files(path):
        try:
            with safe_open(file, framework="numpy") as weights:
                names = list(weights.keys())
                shapes |= {name: list(weights.get_slice(name).get_shape()) for name in names}
        except SafetensorError as error:
            raise ValueError(f"{file} cannot be read ({error}); {FETCH_AGAIN}") from error
    return shapes


def quantized_matrices(file: Path) -> list[tuple[str, int]]:
    """The types and bytes of the matrices of a converted GGUF file."""
    try:
        with safe_open(file, framework="numpy") as blocks:
            kinds = blocks.metadata()
            return [
                (kind, prod(blocks.get_slice(name).get_shape())) for name, kind in kinds.items()
            ]
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read ({error}); {FETCH_AGAIN}") from error


def _with_ending(names: Iterable[str], ending: str) -> str | None:
    return next((name for name in names if name.endswith(ending)), None)

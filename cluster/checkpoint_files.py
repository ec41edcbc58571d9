"""What the files of a checkpoint's folder say, apart from the model's sizes: which hold weights,
whether the text side is whole, whether weights are quantized, and which tokens end an answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

INDEX = "model.safetensors.index.json"
"""Names the files of a checkpoint whose weights are in several."""
WEIGHTS = "model.safetensors"
Quantize = Literal["auto", "none", "int8", "int4"]
"""How a target's weights are quantized (cluster/config/models.py)."""
QUANTIZED = "quantized.blocks"
"""The matrices of a converted GGUF file as they are in it; in the format of safetensors, but not by
its name, as other readers take all such files of a folder for weights."""
_OTHER_FORMATS = "consolidated"
"""Mistral's own format, beside transformers' in the same folder."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
"""Any of them holds a tokenizer's vocabulary; tokenizer_config.json does not."""


_Others = ParamSpec("_Others")
_Read = TypeVar("_Read")


def names_checkpoint(
    read: Callable[Concatenate[Path, _Others], _Read],
) -> Callable[Concatenate[Path, _Others], _Read]:
    """Makes a function that reads a checkpoint raise ValueError, which names it, for whatever its
    contents raise."""

    @wraps(read)
    def reads(folder: Path, /, *args: _Others.args, **kwargs: _Others.kwargs) -> _Read:
        try:
            return read(folder, *args, **kwargs)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a field may have any type and any value
            if str(folder) in str(error):
                raise
            raise ValueError(
                f"{folder} cannot be read ({type(error).__name__}: {first_line(error)}); "
                "fetch it again"
            ) from error

    return reads


def weight_files(folder: Path) -> list[Path]:
    """Those that are there, of the safetensors that a load reads."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / name for name in _indexed(folder) if (folder / name).is_file()]
    files = sorted(folder.glob("*.safetensors"))
    return [file for file in files if not file.name.startswith(_OTHER_FORMATS)]


def pickled_files(folder: Path) -> list[str]:
    """Weights that nothing here reads, because unpickling runs whatever code they name."""
    return sorted(file.name for ending in _PICKLED for file in folder.glob(f"*{ending}"))


def absent_files(folder: Path) -> list[str]:
    """Those of the index that are not there."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return []
    return [name for name in _indexed(folder) if not (folder / name).is_file()]


@names_checkpoint
def _indexed(folder: Path) -> list[str]:
    names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name} is outside of the checkpoint's folder")
    return names


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)


def tokenizer_bytes(folder: Path) -> bytes:
    """Differs where token ids mean something else."""
    files = [folder / name for name in TOKENIZERS]
    return b"".join(file.read_bytes() for file in files if file.is_file())


@names_checkpoint
def quantization(folder: Path) -> str | None:
    """How the weights are quantized; None if they are plain numbers."""
    found = quantization_settings(folder)
    if found is None:
        return None
    return str(found.get("quant_method", "of a method that config.json does not name"))


@names_checkpoint
def quantization_settings(folder: Path) -> Mapping[str, Any] | None:
    """What config.json says of the quantization; None if the weights are plain numbers."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or {}
    found = config.get("quantization_config") or text.get("quantization_config")
    if found is None and (folder / "hf_quant_config.json").is_file():
        return {"quant_method": "modelopt"}
    return found


@names_checkpoint
def stop_token_ids(folder: Path) -> tuple[int, ...]:
    """The tokens that end an answer: those of the generation config, else of the config, and the
    tokenizer's own, which a fine-tune for chats may name there alone."""
    stops = read_json(folder / "generation_config.json").get("eos_token_id")
    if stops is None:
        config = read_json(folder / "config.json")
        stops = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
    named = [stops] if isinstance(stops, int) else list(stops or ())
    return tuple(sorted({*named, *_stops_of_tokenizer(folder)}))


def _stops_of_tokenizer(folder: Path) -> Sequence[int]:
    config = read_json(folder / "tokenizer_config.json")
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, Mapping) else token
    if text is None:
        return ()
    by_id = config.get("added_tokens_decoder") or {}
    added = [(int(number), one["content"]) for number, one in by_id.items()]
    if not added:
        listed = read_json(folder / "tokenizer.json").get("added_tokens") or ()
        added = [(one["id"], one["content"]) for one in listed]
    return [number for number, content in added if content == text]


def read_json(file: Path) -> dict[str, Any]:
    """Empty if there is no such file. Raises ValueError, which names it, if it holds no object."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {first_line(error)}; fetch it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object; fetch it again")
    return content


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]

"""What the files of a checkpoint's folder say, apart from the model's sizes: which hold weights,
whether the text side is whole, whether weights are quantized, and which tokens end an answer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

_MOST = 2**31 - 1
_Id = Annotated[int, Field(le=_MOST)]
_Size = Annotated[int, Field(ge=1, le=_MOST)]
_Object = dict[str, Any]


def _within_the_folder(name: str) -> str:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} is outside of the checkpoint's folder")
    return name


class _Text(BaseModel, strict=True):
    eos_token_id: _Id | list[_Id] | None = None
    quantization_config: _Object | None = None


class _Config(_Text):
    text_config: _Text | None = None
    transformer_layer_config: _Object = {}
    draft_vocab_size: _Size | None = None
    target_hidden_size: _Size | None = None
    eagle_aux_hidden_state_layer_ids: Annotated[list[_Id], Field(max_length=64)] | None = None


class _Index(BaseModel, strict=True):
    weight_map: dict[str, Annotated[str, AfterValidator(_within_the_folder)]]


class _Generation(BaseModel, strict=True):
    eos_token_id: _Id | list[_Id] | None = None


class _Added(BaseModel, strict=True):
    content: str
    id: _Id | None = None


class _TokenizerConfig(BaseModel, strict=True):
    tokenizer_class: str | None = None
    eos_token: str | _Object | None = None
    added_tokens_decoder: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], _Added] | None = None


class _Tokenizer(BaseModel, strict=True):
    added_tokens: list[_Added] | None = None


SCHEMAS: dict[str, type[BaseModel]] = {
    "config.json": _Config,
    "model.safetensors.index.json": _Index,
    "generation_config.json": _Generation,
    "tokenizer_config.json": _TokenizerConfig,
    "tokenizer.json": _Tokenizer,
}
"""By the file's name."""


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


def _indexed(folder: Path) -> list[str]:
    return sorted(set(read_json(folder / INDEX)["weight_map"].values()))


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)


def quantization(folder: Path) -> str | None:
    """How the weights are quantized; None if they are plain numbers."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or {}
    found = config.get("quantization_config") or text.get("quantization_config")
    if found is not None:
        return str(found.get("quant_method", "of a method that config.json does not name"))
    return "modelopt" if (folder / "hf_quant_config.json").is_file() else None


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
    """Empty if there is no such file. Raises ValueError, which names it, if it cannot be read or
    what is read of it here has the wrong type."""
    if not file.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        SCHEMAS[file.name].model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        problem = ".".join(map(str, first["loc"])) or "its content"
        raise ValueError(f"{file}: {problem}: {first['msg']}; fetch it again") from error
    except RecursionError as error:
        raise ValueError(f"{file} is nested too deeply; fetch it again") from error
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}; fetch it again") from error
    return content


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]

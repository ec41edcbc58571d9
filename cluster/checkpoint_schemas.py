"""The types of what is read here of a checkpoint's JSON files, which anyone may have written.

Everything else in them is left to transformers, when the model is loaded.
"""

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

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

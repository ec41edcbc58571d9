"""The schema of what `cluster.yaml` gives to the application: unknown keys are refused.

Imports nothing heavy, so that a config can be checked without a model or a cluster.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.zoo.paths import MODELS, inflated_target, model_path

ZOO = "zoo/"


def _known_model(model: str) -> str:
    if model.startswith(ZOO):
        if model.removeprefix(ZOO) not in MODELS:
            raise ValueError(f"the zoo has {', '.join(ZOO + name for name in MODELS)}")
    elif not (Path(model) / "config.json").is_file():
        raise ValueError("is neither a directory with a Hugging Face checkpoint nor zoo/NAME")
    return model


ModelName = Annotated[str, AfterValidator(_known_model)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetConfig(Section):
    model: ModelName = "zoo/target"
    """A checkpoint's directory, or a built-in model as zoo/NAME."""
    inflate_to: Annotated[int, Field(ge=4_000_000, le=2_000_000_000)] | None = None
    """Only for zoo/target: about so many parameters, with the same output (docs/zoo.md)."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    kv_tokens: Annotated[int, Field(ge=64)] = 16_384
    """Tokens that the KV memory holds, over all requests."""

    def path(self) -> Path:
        if self.inflate_to is not None:
            return inflated_target(self.inflate_to)
        return resolve(self.model)


class DrafterConfig(Section):
    model: ModelName = "zoo/tiny"
    kv_tokens: Annotated[int, Field(ge=64)] = 32_768
    depth: Annotated[int, Field(ge=1, le=16)] = 4
    """Tokens drafted per round."""

    def path(self) -> Path:
        return resolve(self.model)


class AppConfig(Section):
    target: TargetConfig = TargetConfig()
    drafter: DrafterConfig | None = DrafterConfig()
    """null: plain decoding."""
    max_batch: Annotated[int, Field(ge=1)] = 16
    """Requests that run at once."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Requests that wait for their turn; one more is answered with 429."""
    threads: Annotated[int, Field(ge=1)] = 2
    """Of the process that runs the models."""


def resolve(model: str) -> Path:
    """The directory of a model that the schema has let through."""
    return model_path(model.removeprefix(ZOO)) if model.startswith(ZOO) else Path(model)

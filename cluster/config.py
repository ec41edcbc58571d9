"""The schema of what `cluster.yaml` gives to the application: unknown keys are refused.

Imports nothing heavy, so that a config can be checked without a model or a cluster.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cluster.zoo.paths import MODELS, inflated_target, model_path
from policies import catalogue

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
    swap_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens of preempted requests that host memory holds beside it."""

    @model_validator(mode="after")
    def _inflates_the_zoo(self) -> Self:
        if self.inflate_to is not None and self.model != "zoo/target":
            raise ValueError(f"inflate_to: only zoo/target can be inflated, not {self.model}")
        return self

    def path(self) -> Path:
        if self.inflate_to is not None:
            return inflated_target(self.inflate_to)
        return resolve(self.model)


class DrafterConfig(Section):
    name: Annotated[str, Field(min_length=1)]
    """As it appears in statistics, and in a request's `speculation`."""
    kind: Literal["model", "ngram", "suffix"] = "model"
    """ngram and suffix look tokens up in the prompt and in past outputs, and cost nothing."""
    model: ModelName | None = None
    """Of kind model: a checkpoint's directory, or a built-in model as zoo/NAME."""
    max_batch: Annotated[int, Field(ge=1)] = 16
    """Requests that it drafts for at once (B_j of Spin)."""
    kv_tokens: Annotated[int, Field(ge=64)] = 32_768

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if (self.kind == "model") != (self.model is not None):
            raise ValueError("model: a drafter of kind model has one, the other kinds have none")
        return self

    def path(self) -> Path | None:
        return None if self.model is None else resolve(self.model)


class Choice(Section):
    """A policy by name, with options as its parameters in policies/ document them."""

    name: str
    options: dict[str, Any] = {}


class PoliciesConfig(Section):
    selection: Choice = Choice(name="hedge")
    speculation: Choice = Choice(name="planner")
    schedule: Choice = Choice(name="default")
    fairness: dict[str, Any] = {}
    """Priorities, tenants and the bound on waiting, around any schedule."""
    seed: int = 0
    """Of the policies' own random draws."""

    @model_validator(mode="after")
    def _exist(self) -> Self:
        catalogue.make_selection(self.selection.name, self.selection.options)
        catalogue.make_speculation(self.speculation.name, self.speculation.options)
        schedule = catalogue.make_schedule(self.schedule.name, self.schedule.options)
        catalogue.fair(schedule, self.fairness)
        return self


class LimitsConfig(Section):
    """Every queue and wait ends here."""

    max_batch: Annotated[int, Field(ge=1)] = 16
    """Requests that run at once."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Requests that wait for their turn; one more is answered with 429."""
    forward_tokens: Annotated[int, Field(ge=2)] = 512
    """New tokens in one forward of the target: roots, drafts and pieces of prompts."""
    unread_tokens: Annotated[int, Field(ge=1)] = 256
    """A request that is further ahead of its reader pauses."""
    stalled_s: Annotated[float, Field(gt=0)] = 30.0
    """A request that has paused for so long is cancelled."""

    @model_validator(mode="after")
    def _roots_fit(self) -> Self:
        if self.forward_tokens < self.max_batch:
            raise ValueError(
                f"forward_tokens: {self.forward_tokens} leave no room for one token of each of "
                f"max_batch = {self.max_batch} requests"
            )
        return self


class AppConfig(Section):
    target: TargetConfig = TargetConfig()
    drafters: tuple[DrafterConfig, ...] = ()
    """None: plain decoding."""
    policies: PoliciesConfig = PoliciesConfig()
    limits: LimitsConfig = LimitsConfig()
    threads: Annotated[int, Field(ge=1)] = 2
    """Of the process that runs the models."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [drafter.name for drafter in self.drafters]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"drafters: two of them are named {name!r}")
        return self


def resolve(model: str) -> Path:
    """The directory of a model that the schema has let through."""
    return model_path(model.removeprefix(ZOO)) if model.startswith(ZOO) else Path(model)

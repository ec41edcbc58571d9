"""The models of a config: one target, any number of drafters, and where each of them runs."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cluster.checkpoints import Architecture, architecture
from cluster.config.backends import BACKENDS, able
from cluster.config.section import Section, within
from cluster.smollm2 import SMOLLM2, has_smollm2, smollm2_path
from cluster.zoo.paths import MODELS, inflated_target, model_path
from policies import ranges

ZOO = "zoo/"
RESERVED_NAMES = ("off", "verifier")
"""Mean something else where drafters are named: in a request's `speculation`, and among actors."""


def _known_model(model: str) -> str:
    if model.startswith(ZOO):
        if model.removeprefix(ZOO) not in MODELS:
            raise ValueError(f"the zoo has {', '.join(ZOO + name for name in MODELS)}")
    elif model == SMOLLM2:
        if not has_smollm2():
            raise ValueError(
                f"{SMOLLM2} is not on this machine; `make model` fetches it, and "
                "cluster/zoo.yaml serves the built-in models in its place"
            )
    elif not (Path(model) / "config.json").is_file():
        raise ValueError(
            f"{model} is neither a directory with a Hugging Face checkpoint nor zoo/NAME "
            f"nor {SMOLLM2}"
        )
    return model


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"{gpus} is more than one GPU and no whole number of them")
    return gpus


def _free_name(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"{name!r} is reserved; call the drafter something else")
    return name


ModelName = Annotated[str, AfterValidator(_known_model)]
DrafterName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), AfterValidator(_free_name)
]
Gpus = Annotated[float, within(ranges.COUNT), AfterValidator(_whole_or_part)]
Cpus = Annotated[float, within(ranges.COUNT)]
Count = Annotated[int, within(ranges.COUNT)]
AtLeastOne = Annotated[int, within(ranges.SOME)]
Tokens = Annotated[int, Field(ge=64, le=ranges.COUNT.most)]
Threads = AtLeastOne
Placement = Literal["actor", "inline"]
Dtype = Literal["auto", "bfloat16", "float32"]


class TargetConfig(Section):
    model: ModelName = "zoo/target"
    """A checkpoint's directory, a built-in model as zoo/NAME, or SmolLM2-135M-Instruct, which
    `make model` fetches."""
    inflate_to: Annotated[int, Field(ge=4_000_000, le=2_000_000_000)] | None = None
    """Only for zoo/target: about so many parameters, with the same output (docs/zoo.md)."""
    dtype: Dtype = "auto"
    """Of weights and KV. `auto`: bfloat16 where the device multiplies it fast, else float32, in
    which the same request gives the same tokens in any company."""
    kv_tokens: Tokens = 16_384
    """Tokens that the KV memory holds, over all requests. At least one whole context."""
    swap_tokens: Count = 0
    """Tokens of preempted requests that host memory holds beside it."""
    backend: Literal["native", "vllm"] = "native"
    """`native` verifies trees and swaps; `vllm` verifies chains with vLLM's own kernels
    (docs/config.md has the table)."""
    tensor_parallel: AtLeastOne = 1
    """Ranks that share the model. Each needs whole attention heads."""
    placement: Placement = "actor"
    """`actor`: a process of its own, or one for each rank. `inline`: in the replica's process."""
    gpus: Gpus = 0
    """Of each rank; below 1 a share of a GPU, 0 runs on the CPU."""
    accelerator: str | None = None
    """The type of GPU that it needs, as Ray names it (L4, A100, H100, ...); None: any."""
    cpus: Cpus = 0.05
    """What each actor asks of Ray; what it really uses is `threads`."""
    threads: Threads = 1
    """Of each rank, for its computations."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of vLLM's engine, for `backend: vllm`."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        backend = BACKENDS[self.backend]
        if self.inflate_to is not None and self.model != "zoo/target":
            raise ValueError(f"inflate_to: only zoo/target can be inflated, not {self.model}")
        if self.swap_tokens and not backend.swap:
            raise ValueError(
                f"swap_tokens: backend {self.backend} recomputes the KV of preempted requests; "
                f"set 0, or backend: {able('swap')}"
            )
        if self.engine_args and not backend.engine_args:
            raise ValueError(
                f"engine_args: backend {self.backend} has none; leave them out, or set backend: "
                f"{able('engine_args')}"
            )
        if self.placement == "inline" and self.tensor_parallel > 1:
            raise ValueError(
                "placement: each of several ranks is a process of its own; set actor, or "
                "tensor_parallel: 1"
            )
        _refuse_what_only_actors_have(self, self.placement)
        _refuse_accelerator_without_gpu(self.accelerator, self.gpus)
        return self

    def architecture(self) -> Architecture:
        return architecture(resolve(self.model), self.inflate_to)

    def path(self) -> Path:
        """The checkpoint's directory. An inflated one is written first, if it is not there."""
        if self.inflate_to is not None:
            return inflated_target(self.inflate_to)
        return resolve(self.model)


class DrafterConfig(Section):
    name: DrafterName
    """As it appears in statistics, and in a request's `speculation`."""
    kind: Literal["model", "ngram", "suffix"] = "model"
    """ngram and suffix look tokens up in the prompt and in past outputs, and cost nothing."""
    model: ModelName | None = None
    """Of kind model: as the target's."""
    dtype: Dtype = "auto"
    """Of weights and KV. `auto`: as the target's, but float32 for models so small that compiled
    loops run them (docs/drafters.md)."""
    max_batch: AtLeastOne = 16
    """Requests that each instance drafts for at once (B_j of Spin)."""
    kv_tokens: Tokens = 32_768
    """Tokens that the KV memory of each instance holds."""
    past_tokens: Count = 100_000
    """Of kind suffix: tokens of past outputs that it remembers, over all requests; the least
    recently used leave. Each takes at most 120 bytes of the replica's memory (docs/drafters.md)."""
    instances: AtLeastOne = 1
    """Lanes that run this drafter; several are named NAME/0, NAME/1, ..."""
    placement: Placement = Field(
        default_factory=lambda known: "actor" if known["kind"] == "model" else "inline"
    )
    """`actor`: each instance a process of its own. `inline`: in the replica's process, as
    lookups always are."""
    gpus: Gpus = 0
    """Of each instance; below 1 a share of a GPU, 0 runs on the CPU."""
    accelerator: str | None = None
    """The type of GPU that it needs, as Ray names it (L4, A100, H100, ...); None: any."""
    cpus: Cpus = 0.05
    """What each actor asks of Ray; what it really uses is `threads`."""
    threads: Threads = 1
    """Of each instance, for its computations."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind != "suffix" and "past_tokens" in self.model_fields_set:
            raise ValueError(
                f"past_tokens: only kind suffix remembers past outputs, not {self.kind}; "
                "leave it out"
            )
        if self.kind != "model":
            return self._is_a_lookup()
        if self.model is None:
            raise ValueError("model: a drafter of kind model needs one")
        if self.placement == "inline" and self.instances > 1:
            raise ValueError("instances: several in one process gain nothing; set placement: actor")
        _refuse_what_only_actors_have(self, self.placement)
        _refuse_accelerator_without_gpu(self.accelerator, self.gpus)
        return self

    def _is_a_lookup(self) -> Self:
        if self.placement == "actor":
            raise ValueError(
                f"placement: {self.kind} drafts in less time than a message takes; set inline"
            )
        meaningless = self.model_fields_set - {"name", "kind", "placement", "past_tokens"}
        if meaningless:
            raise ValueError(
                f"{', '.join(sorted(meaningless))}: {self.kind} runs no model and has no such "
                "field; leave it out"
            )
        return self

    @property
    def lanes(self) -> tuple[str, ...]:
        """The names of its instances."""
        if self.instances == 1:
            return (self.name,)
        return tuple(f"{self.name}/{number}" for number in range(self.instances))

    def path(self) -> Path | None:
        return None if self.model is None else resolve(self.model)


def resolve(model: str) -> Path:
    """The directory of a model that the schema has let through."""
    if model == SMOLLM2:
        return smollm2_path()
    return model_path(model.removeprefix(ZOO)) if model.startswith(ZOO) else Path(model)


def _refuse_what_only_actors_have(section: Section, placement: Placement) -> None:
    """Inline models share the replica's process, its CPUs and its threads."""
    unused = {"cpus", "threads"} & section.model_fields_set
    if placement == "inline" and unused:
        raise ValueError(
            f"{', '.join(sorted(unused))}: an inline model has those of the replica's process; "
            "set the top level's threads, or placement: actor"
        )


def _refuse_accelerator_without_gpu(accelerator: str | None, gpus: float) -> None:
    if accelerator is not None and not gpus:
        raise ValueError(f"accelerator: {accelerator} without a GPU; set gpus")

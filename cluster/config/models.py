"""The models of a config (one target, any number of drafters) and where each of them runs."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cluster.adapters import LoraModules
from cluster.architecture import Architecture
from cluster.built_in_models import inflated_target
from cluster.checkpoint_files import Quantize
from cluster.checkpoints import architecture
from cluster.config.backends import BACKENDS, able
from cluster.config.drafter_kinds import DRAFTER_KINDS, OPTIONS, drafter_kind, with_option
from cluster.config.learning import LearnConfig
from cluster.config.section import AtLeastOne, Count, Cpus, Gpus, Section
from cluster.sources import check_source, checkpoint_folder, header_folder, quantized_bytes
from policies import ranges

RESERVED_NAMES = ("off", "verifier")
"""Names that a drafter cannot have: `off` is a value of a request's `speculation`, and `verifier`
names an actor."""
_KV_TOKENS = 32_768
"""The default of drafters that can compute evicted rows again."""


def _free_name(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"{name!r} is reserved; call the drafter something else")
    return name


def _known_kind(kind: str) -> str:
    drafter_kind(kind)
    return kind


ModelName = Annotated[str, AfterValidator(check_source)]
DrafterName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), AfterValidator(_free_name)
]
Kind = Annotated[str, AfterValidator(_known_kind)]
Tokens = Annotated[int, Field(ge=64, le=ranges.COUNT.most)]
Threads = AtLeastOne
Placement = Literal["actor", "inline"]
Dtype = Literal["auto", "bfloat16", "float32"]


class TargetConfig(Section):
    model: ModelName = "zoo/target"
    """A checkpoint's directory, a `.gguf` file, a model of the Hugging Face hub as `org/name` or
    `org/name@revision`, a built-in model as zoo/NAME, or SmolLM2-135M-Instruct, which `make model`
    fetches."""
    inflate_to: Annotated[int, Field(ge=4_000_000, le=2_000_000_000)] | None = None
    """Only for zoo/target: inflate it to about this many parameters, with the same output
    (docs/zoo.md)."""
    dtype: Dtype = "auto"
    """The dtype of weights and KV. `auto`: bfloat16 if the device multiplies it fast, else float32,
    with which a request's tokens do not depend on the batch that it runs in."""
    quantize: Quantize = "auto"
    """Weights of a target that the native backend runs on a CPU: `int8` or `int4`, rounded when it
    is loaded, in groups of 32 inputs; `auto`: those of a GGUF file as they are, others in `dtype`;
    `none`: as floats. KV beside quantized weights is float16 (docs/cpu_speed.md)."""
    kv_tokens: Tokens = 16_384
    """Capacity of the KV cache in tokens, for all requests together; at least one whole context."""
    backend: Literal["native", "vllm"] = "native"
    """`native` verifies trees; `vllm` verifies chains with vLLM's own kernels
    (docs/config.md has the table)."""
    tensor_parallel: AtLeastOne = 1
    """Number of ranks that share the model, for `backend: vllm`. Each needs whole attention
    heads."""
    placement: Placement = "actor"
    """`actor`: in a process of its own. `inline`: in the replica's process."""
    gpus: Gpus = 0
    """GPUs per rank; below 1 a share of a GPU; 0 runs on the CPU."""
    accelerator: str | None = None
    """The required type of GPU, as Ray names it (L4, A100, H100, ...); null: any."""
    cpus: Cpus = 0.05
    """CPUs that each actor reserves in Ray; how many it uses depends on `threads`."""
    threads: Threads = 1
    """Computing threads per rank."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of vLLM's engine, for `backend: vllm`."""
    lora_modules: LoraModules = Field(default_factory=dict)
    """LoRA adapters, for `backend: vllm`: their names, under which they are served, and the
    directories with PEFT's files (docs/vllm.md)."""
    tool_parser: Literal["hermes", "llama3_json"] | None = None
    """The form in which the model writes tool calls: `hermes` (also Qwen) or `llama3_json`; null: a
    request's `tool_choice` cannot be `auto` (docs/api.md)."""
    reasoning_parser: Literal["qwen3", "deepseek_r1"] | None = None
    """How the model marks its reasoning: `qwen3`, `deepseek_r1`; null: reasoning is part of the
    content."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        backend = BACKENDS[self.backend]
        if self.inflate_to is not None and self.model != "zoo/target":
            raise ValueError(f"inflate_to: only zoo/target can be inflated, not {self.model}")
        if self.engine_args and not backend.engine_args:
            raise ValueError(
                f"engine_args: backend {self.backend} has none; leave them out, or set backend: "
                f"{able('engine_args')}"
            )
        if self.quantize in ("int8", "int4") and not self._can_quantize:
            raise ValueError(
                f"quantize: {self.quantize} needs backend: native on a CPU (gpus: 0) and a dtype "
                "other than bfloat16; leave it out"
            )
        if self.tensor_parallel > 1 and not backend.ranks:
            raise ValueError(
                f"tensor_parallel: backend {self.backend} runs on one device; set 1, or backend: "
                f"{able('ranks')}"
            )
        if self.placement == "inline" and self.tensor_parallel > 1:
            raise ValueError(
                "placement: each of several ranks is a process of its own; set actor, or "
                "tensor_parallel: 1"
            )
        _refuse_what_only_actors_have(self, self.placement)
        _refuse_accelerator_without_gpu(self.accelerator, self.gpus)
        return self

    @property
    def _can_quantize(self) -> bool:
        return self.backend == "native" and not self.gpus and self.dtype != "bfloat16"

    @property
    def own_quantize(self) -> Quantize:
        """`quantize`, or `none` where it has no effect."""
        return self.quantize if self._can_quantize else "none"

    @property
    def runs_quantized(self) -> bool:
        if self.own_quantize == "auto":
            return quantized_bytes(self.model) is not None
        return self.own_quantize != "none"

    def architecture(self) -> Architecture:
        return architecture(self.header_path(), self.inflate_to)

    def path(self) -> Path:
        """The checkpoint's directory. A checkpoint that does not exist yet (inflated, of a GGUF
        file, of the hub) is written or fetched first."""
        if self.inflate_to is not None:
            return inflated_target(self.inflate_to)
        return checkpoint_folder(self.model)

    @property
    def device(self) -> str:
        return _device(self.gpus)

    def header_path(self) -> Path:
        """A directory with the model's config.json and tokenizer, perhaps without weights."""
        return header_folder(self.model)


class DrafterConfig(Section):
    name: DrafterName
    """The name in statistics and in a request's `speculation`."""
    kind: Kind = Field(
        default="model",
        description="; ".join(f"`{name}`: {kind.about}" for name, kind in DRAFTER_KINDS.items())
        + ".",
    )
    model: ModelName | None = None
    """For kinds `model` and `eagle3`: given like the target's `model`."""
    dtype: Dtype = "auto"
    """The dtype of weights and KV. `auto`: as for the target; of a head on a CPU 8 bits."""
    max_batch: AtLeastOne = 16
    """The most requests that each instance drafts for at once (B_j of Spin)."""
    kv_tokens: Tokens | None = None
    """Capacity of each instance's KV cache in tokens. null: 32,768, but for kind `eagle3` as many
    as the target keeps, as for `quantized`."""
    quantize: Literal["int8", "int4"] = "int4"
    """For kind `quantized`: how the target's weights are rounded, as by the target's `quantize`."""
    past_tokens: Count = 100_000
    """For kind `suffix`: tokens of past outputs to keep, for all requests together; the least
    recently used are dropped. Each takes at most 120 bytes of a replica's memory, and 24 of the
    router's (docs/drafters.md)."""
    instances: AtLeastOne = 1
    """Number of lanes that run this drafter; several are named NAME/0, NAME/1, ..."""
    placement: Placement = Field(
        default_factory=lambda known: "inline" if drafter_kind(known["kind"]).lookup else "actor"
    )
    """`actor`: each instance in a process of its own. `inline`: in the replica's process, as
    lookups always are."""
    learn: LearnConfig | None = None
    """For kind `eagle3`: whether it learns from traffic, and how; null: it does not."""
    gpus: Gpus = 0
    """GPUs per instance; below 1 a share of a GPU; 0 runs on the CPU."""
    accelerator: str | None = None
    """The required type of GPU, as Ray names it (L4, A100, H100, ...); null: any."""
    cpus: Cpus = 0.05
    """CPUs that each actor reserves in Ray; how many it uses depends on `threads`."""
    threads: Threads = 1
    """Computing threads per instance."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        kind = drafter_kind(self.kind)
        for option in sorted(self.model_fields_set & OPTIONS - {*kind.options}):
            raise ValueError(
                f"{option}: only kind {with_option(option)} has it, not {self.kind}; leave it out"
            )
        if kind.lookup:
            return self._is_a_lookup()
        if kind.copies_target:
            self._copies_the_target()
        elif self.model is None:
            raise ValueError(f"model: a drafter of kind {self.kind} needs one")
        if self.placement == "inline" and self.instances > 1:
            raise ValueError("instances: several in one process gain nothing; set placement: actor")
        _refuse_what_only_actors_have(self, self.placement)
        _refuse_accelerator_without_gpu(self.accelerator, self.gpus)
        return self

    def _copies_the_target(self) -> None:
        for field in ("model", "dtype"):
            if field in self.model_fields_set:
                raise ValueError(f"{field}: {self.kind} copies the target; leave it out")

    def _is_a_lookup(self) -> Self:
        if self.placement == "actor":
            raise ValueError(
                f"placement: {self.kind} drafts in less time than a message takes; set inline"
            )
        meaningless = self.model_fields_set - {"name", "kind", "placement"} - OPTIONS
        if meaningless:
            raise ValueError(
                f"{', '.join(sorted(meaningless))}: {self.kind} runs no model and has no such "
                "field; leave it out"
            )
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options that its kind has and others have not."""
        return {name: getattr(self, name) for name in drafter_kind(self.kind).options}

    @property
    def lanes(self) -> tuple[str, ...]:
        """The names of the drafter's instances."""
        if self.instances == 1:
            return (self.name,)
        return tuple(f"{self.name}/{number}" for number in range(self.instances))

    @property
    def is_lookup(self) -> bool:
        return drafter_kind(self.kind).lookup

    @property
    def device(self) -> str:
        return _device(self.gpus)

    def is_apart_from(self, target: TargetConfig) -> bool:
        """Whether its instances never compute on the target's processors. Ray may put shares that
        fit on one GPU there; an actor without a GPU shares cores, with the coordinator at least."""
        if self.placement == "inline" or not self.gpus:
            return False
        return not target.gpus or self.gpus + target.gpus > 1

    def kv_capacity(self, target: TargetConfig) -> int:
        """`kv_tokens`, or its default beside this target."""
        if self.kv_tokens is not None:
            return self.kv_tokens
        kind = drafter_kind(self.kind)
        # Rows of a head that were evicted could only be computed again from features that are gone;
        # a row of a copy takes as much as the target's own.
        return target.kv_tokens if kind.reads_features or kind.copies_target else _KV_TOKENS

    def path(self) -> Path | None:
        """The directory of its own checkpoint, fetched or written first if need be; None for kinds
        that have none."""
        return None if self.model is None else checkpoint_folder(self.model)

    def header_path(self) -> Path | None:
        return None if self.model is None else header_folder(self.model)


def _device(gpus: float) -> str:
    return "cuda" if gpus else "cpu"


def _refuse_what_only_actors_have(section: Section, placement: Placement) -> None:
    """Refuses fields that have no effect inline, where models share the CPUs and threads of the
    replica's process."""
    unused = {"cpus", "threads"} & section.model_fields_set
    if placement == "inline" and unused:
        raise ValueError(
            f"{', '.join(sorted(unused))}: an inline model has those of the replica's process; "
            "set the top level's threads, or placement: actor"
        )


def _refuse_accelerator_without_gpu(accelerator: str | None, gpus: float) -> None:
    if accelerator is not None and not gpus:
        raise ValueError(f"accelerator: {accelerator} without a GPU; set gpus")

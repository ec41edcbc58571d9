"""Loads a vLLM target from its checkpoint, with vLLM's arguments from the config and our own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.adapters import adapter_rank
from cluster.checkpoint_files import stop_token_ids
from engine.checkpoint import load_config
from engine.errors import InvalidEngineArgs
from engine.grammar.compiler import Grammars

if TYPE_CHECKING:
    from engine.verifiers.vllm.verifier import VllmVerifier

ADAPTER = "engine.verifiers.vllm.adapter"
BLOCK_SIZE = 32
"""Tokens in a KV block. vLLM's default on a CPU, 128, wastes more of a small pool."""
TYPICAL_DRAFT = 8
"""The draft length that vLLM sizes its steps for. A draft may be longer or shorter."""
RESERVED_ARGUMENTS = {
    "model": "set target.model instead",
    "tokenizer": "the target runs on token ids",
    "skip_tokenizer_init": "the target runs on token ids",
    "trust_remote_code": "code that a checkpoint brings along never runs",
    "dtype": "set target.dtype instead",
    "tensor_parallel_size": "set target.tensor_parallel instead",
    "num_gpu_blocks_override": "set target.kv_tokens instead",
    "kv_cache_memory_bytes": "set target.kv_tokens instead",
    "gpu_memory_utilization": "set target.kv_tokens instead",
    "speculative_config": "the drafts come from Spindle's drafters",
    "scheduler_cls": "Spindle's schedule chooses the requests of a step",
    "scheduling_policy": "Spindle's schedule chooses the requests of a step",
    "prefill_schedule_interval": "Spindle's schedule chooses the requests of a step",
    "async_scheduling": "a draft needs the verdict before it",
    "worker_extension_cls": "Spindle installs its sampler by it",
    "enable_lora": "set target.lora_modules instead",
    "max_loras": "set target.lora_modules instead",
    "max_cpu_loras": "set target.lora_modules instead",
    "max_lora_rank": "set target.lora_modules instead",
    "logits_processors": "Spindle's sampler replaces vLLM's",
    "pipeline_parallel_size": "not supported by this backend",
    "data_parallel_size": "not supported by this backend; give the application more replicas",
}
"""Arguments of vLLM that the config may not set, and the reason given in the error."""
FEATURE_LAYERS = "spindle_feature_layers"
"""The key of VllmSpec.feature_layers in vLLM's `additional_config`, which workers have and which is
part of the compile cache's key: else a graph that hands out other layers would be loaded."""


@dataclass(frozen=True, slots=True)
class VllmSpec:
    checkpoint: Path
    dtype: str
    """By vLLM's name: bfloat16, float32, ..."""
    kv_tokens: int
    tensor_parallel: int = 1
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Any argument of vLLM except RESERVED_ARGUMENTS."""
    feature_layers: tuple[int, ...] = ()
    """The layers whose hidden states heads read (engine/hidden_states.py numbers them). Not 0,
    because vLLM overwrites the embeddings."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The directories of LoRA adapters, by name."""
    ray_metrics: bool = False
    """Report vLLM's own metrics to Ray's endpoint; needs a process that Ray runs."""


def load_vllm(spec: VllmSpec) -> "VllmVerifier":
    """Raises InvalidEngineArgs or UnsupportedVLLM."""
    # vLLM reads these when it is imported or configured. The engine core must run in this process,
    # so that each step's turns can be passed to our scheduler.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    # Each process has a thread budget (OMP_NUM_THREADS); threads are not bound to cores.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from engine.verifiers.vllm.adapter.core import StepEngine
    from engine.verifiers.vllm.verifier import VllmVerifier

    engine = StepEngine(engine_config(spec), spec.adapters, spec.ray_metrics)
    grammars = Grammars.of(spec.checkpoint, engine.vocab_size)
    return VllmVerifier(engine, stop_token_ids(spec.checkpoint), grammars)


def engine_config(spec: VllmSpec) -> Any:
    """vLLM's config of this target. Raises InvalidEngineArgs for what we or vLLM refuse."""
    from vllm.engine.arg_utils import EngineArgs

    given = dict(spec.engine_args)
    known = {one.name for one in fields(EngineArgs)}
    for name in given:
        if name in RESERVED_ARGUMENTS:
            raise InvalidEngineArgs(name, RESERVED_ARGUMENTS[name])
        if name not in known:
            raise InvalidEngineArgs(name, "vLLM has no such argument")
    block_size = given.setdefault("block_size", BLOCK_SIZE)
    blocks = -(-spec.kv_tokens // block_size)
    text = load_config(spec.checkpoint).get_text_config(decoder=True)
    context = min(text.max_position_embeddings, blocks * block_size)
    given.setdefault("max_model_len", context)
    given.setdefault("distributed_executor_backend", "mp" if spec.tensor_parallel > 1 else "uni")
    given.setdefault("served_model_name", spec.checkpoint.name)  # a label of its metrics
    if spec.feature_layers:
        layers = sorted(set(spec.feature_layers))
        given["additional_config"] = {**given.get("additional_config", {}), FEATURE_LAYERS: layers}
    if spec.adapters:
        # One place more than there are: on a CPU rows without an adapter read the last one's zeros
        # where others of the batch have one. Held requests count nowhere in vLLM, so all are in.
        given |= {"enable_lora": True, "max_loras": len(spec.adapters) + 1}
        given["max_lora_rank"] = max(adapter_rank(Path(one)) for one in spec.adapters.values())
    try:
        return EngineArgs(
            model=str(spec.checkpoint),
            dtype=spec.dtype,
            tensor_parallel_size=spec.tensor_parallel,
            skip_tokenizer_init=True,
            trust_remote_code=False,
            num_gpu_blocks_override=blocks + 1,  # vLLM reserves one block
            kv_cache_memory_bytes=1 << 20,  # overridden by the line above; avoids a profiling run
            speculative_config={
                "method": "custom_class",
                "model": f"{ADAPTER}.worker.NoDrafts",
                "num_speculative_tokens": TYPICAL_DRAFT,
            },
            scheduler_cls=f"{ADAPTER}.scheduler.TurnScheduler",
            worker_extension_cls=f"{ADAPTER}.worker.WorkerExtension",
            async_scheduling=False,
            **given,
        ).create_engine_config()
    except (ValueError, TypeError) as error:
        raise InvalidEngineArgs("refused by vLLM", str(error)) from error

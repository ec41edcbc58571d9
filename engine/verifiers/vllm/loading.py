"""A vLLM target from its checkpoint: vLLM's own arguments, and those that we rely on."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, GenerationConfig

from engine.verifiers.vllm.errors import InvalidEngineArgs

if TYPE_CHECKING:
    from engine.verifiers.vllm.verifier import VllmVerifier

ADAPTER = "engine.verifiers.vllm.adapter"
BLOCK_SIZE = 32
"""Tokens in a KV block. vLLM's default on a CPU, 128, wastes more of a small pool."""
USUAL_DRAFT = 8
"""Tokens for which vLLM shapes its steps. A draft may be longer or shorter."""
OURS = {
    "model": "target.model says it",
    "tokenizer": "the target runs on token ids",
    "skip_tokenizer_init": "the target runs on token ids",
    "dtype": "target.dtype says it",
    "tensor_parallel_size": "target.tensor_parallel says it",
    "num_gpu_blocks_override": "target.kv_tokens says it",
    "kv_cache_memory_bytes": "target.kv_tokens says it",
    "gpu_memory_utilization": "target.kv_tokens says it",
    "speculative_config": "the drafts come from Spindle's drafters",
    "scheduler_cls": "Spindle's schedule decides who runs",
    "scheduling_policy": "Spindle's schedule decides who runs",
    "async_scheduling": "a draft needs the verdict before it",
    "worker_extension_cls": "Spindle's sampler goes there",
    "logits_processors": "Spindle's sampler takes the place of vLLM's",
    "pipeline_parallel_size": "not supported by this backend",
    "data_parallel_size": "not supported by this backend; give the application more replicas",
}
"""Arguments of vLLM's that the config may not set, and why."""


@dataclass(frozen=True, slots=True)
class VllmSpec:
    checkpoint: Path
    dtype: str
    """As vLLM names it: bfloat16, float32, ..."""
    kv_tokens: int
    tensor_parallel: int = 1
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's own, but for those of OURS."""
    ray_metrics: bool = False
    """vLLM's own metrics appear on Ray's endpoint; in a process that Ray runs."""


def load_vllm(spec: VllmSpec) -> "VllmVerifier":
    """Raises InvalidEngineArgs, or UnsupportedVLLM for a vLLM that we cannot work with."""
    # Read by vLLM when it is imported or configured. The engine core runs in this process,
    # which is what lets our scheduler be told who runs.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    # Threads are divided by the budget of each process (OMP_NUM_THREADS), not bound to cores.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from engine.verifiers.vllm.adapter.core import StepEngine
    from engine.verifiers.vllm.verifier import VllmVerifier

    engine = StepEngine(engine_config(spec), spec.ray_metrics)
    return VllmVerifier(engine, _stop_token_ids(spec.checkpoint))


def engine_config(spec: VllmSpec) -> Any:
    """vLLM's config of this target; its own validation has the last word."""
    from vllm.engine.arg_utils import EngineArgs

    given = dict(spec.engine_args)
    known = {one.name for one in fields(EngineArgs)}
    for name in given:
        if name in OURS:
            raise InvalidEngineArgs(name, OURS[name])
        if name not in known:
            raise InvalidEngineArgs(name, "vLLM has no such argument")
    block_size = given.setdefault("block_size", BLOCK_SIZE)
    blocks = -(-spec.kv_tokens // block_size)
    text = AutoConfig.from_pretrained(spec.checkpoint).get_text_config(decoder=True)
    context = min(text.max_position_embeddings, blocks * block_size)
    given.setdefault("max_model_len", context)
    given.setdefault("distributed_executor_backend", "mp" if spec.tensor_parallel > 1 else "uni")
    given.setdefault("served_model_name", spec.checkpoint.name)  # a label of its metrics
    try:
        return EngineArgs(
            model=str(spec.checkpoint),
            dtype=spec.dtype,
            tensor_parallel_size=spec.tensor_parallel,
            skip_tokenizer_init=True,
            num_gpu_blocks_override=blocks + 1,  # vLLM keeps one for itself
            kv_cache_memory_bytes=1 << 20,  # overridden by the line above, but spares a profile
            speculative_config={
                "method": "custom_class",
                "model": f"{ADAPTER}.worker.NoDrafts",
                "num_speculative_tokens": USUAL_DRAFT,
            },
            scheduler_cls=f"{ADAPTER}.scheduler.TurnScheduler",
            worker_extension_cls=f"{ADAPTER}.worker.WorkerExtension",
            async_scheduling=False,
            **given,
        ).create_engine_config()
    except (ValueError, TypeError) as error:
        raise InvalidEngineArgs("refused by vLLM", str(error)) from error


def _stop_token_ids(checkpoint: Path) -> tuple[int, ...]:
    """The checkpoint's own end-of-sequence tokens, as the native backend takes them."""
    if (checkpoint / "generation_config.json").is_file():
        stops = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    else:
        stops = AutoConfig.from_pretrained(checkpoint).eos_token_id
    if stops is None:
        return ()
    return (stops,) if isinstance(stops, int) else tuple(stops)

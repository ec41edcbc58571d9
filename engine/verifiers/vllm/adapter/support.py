"""Checks that this vLLM has what the adapter relies on, and undoes side effects on the process."""

import atexit

import vllm
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine.errors import SUPPORTED_VLLM, UnsupportedVLLM
from engine.verifiers.vllm.environment import patch_llvmlite

patch_llvmlite()


@atexit.register
def _leave_groups() -> None:
    """Ends vLLM's process groups, which all engines of a process share, only when it exits.

    Otherwise their threads (39 of gloo's after one engine) outlive the interpreter's teardown.
    """
    destroy_model_parallel()
    destroy_distributed_environment()


def check(config: VllmConfig) -> None:
    """Raises UnsupportedVLLM if the version or the configuration is not supported."""
    if not vllm.__version__.startswith(f"{SUPPORTED_VLLM}."):
        raise unsupported("another version")
    require_attributes(Scheduler, "schedule", "_reserve_prefill_lookahead", "_preempt_request")
    require_attributes(Scheduler, "_free_request_blocks", "_get_local_prefix_cache_hit")
    require_attributes(KVCacheManager, "truncate_computed_blocks")
    require_attributes(EngineCore, "step", "add_request", "abort_requests", "add_lora")
    require_attributes(GPUModelRunner, "_sample", "sample_tokens")
    if config.use_v2_model_runner:
        raise unsupported("model runner V2 is on, set VLLM_USE_V2_MODEL_RUNNER=0")
    if config.scheduler_config.async_scheduling:
        raise unsupported("asynchronous scheduling is on, and each step needs the last one's")


def unsupported(problem: str) -> UnsupportedVLLM:
    return UnsupportedVLLM(vllm.__version__, problem)


def require_attributes(owner: object, *paths: str) -> None:
    """Raises UnsupportedVLLM if a dotted attribute path is missing."""
    for path in paths:
        value = owner
        for name in path.split("."):
            if not hasattr(value, name):
                kind = owner.__name__ if isinstance(owner, type) else type(owner).__name__
                raise unsupported(f"{kind} has no {path}")
            value = getattr(value, name)

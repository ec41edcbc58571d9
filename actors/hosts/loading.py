"""Loads a config's models into this process, which is an actor's or the coordinator's."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import engine.lean_imports  # noqa: F401  # before whatever imports models of transformers
from actors.hosts.protocol import TargetCosts
from cluster.checkpoint_files import quantization
from cluster.config import DrafterConfig, TargetConfig
from cluster.config.backends import BACKENDS
from cluster.config.drafter_kinds import drafter_kind
from cluster.quantized_targets import cpu_problem, needs_bfloat16, processor_flags
from engine.cpu.prepack import fast_dtype, has_bf16_products
from engine.cpu.quantized_loading import will_quantize
from engine.errors import UnsupportedModel
from engine.grammar.compiler import Grammars
from engine.model import PackedModel
from engine.profiler import Grid, profile
from engine.protocol import Verifier
from engine.request import TargetLimits
from engine.verifiers.native import NativeVerifier
from policies.cost import recompute_cost

if TYPE_CHECKING:  # imports what the target's actor has no use for
    from engine.drafters.loading import LoadedDrafter

_LOG = logging.getLogger("spindle")
_PREFILL_CHUNK = 512
"""Tokens of a forward from which the cost of reading a preempted request's tokens again follows."""
_SLOW_BF16 = (
    "this processor does not multiply bfloat16: forwards of more than some ten tokens take longer "
    "than in float32, so that drafts hardly pay; set target.dtype to float32 (docs/cpu_speed.md)"
)


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    verifier: Verifier
    measure: Callable[[Path, float], TargetCosts]
    """Profiles forwards for so many seconds at most, while nothing else runs on the device; caches
    the results in the directory."""
    grammars: Grammars | None
    """The verifier's; None: it follows none."""

    @property
    def limits(self) -> TargetLimits:
        verifier = self.verifier
        return TargetLimits(
            verifier.vocab_size,
            verifier.max_context,
            verifier.stop_token_ids,
            verifier.verifies_trees,
            verifier.follows_grammars,
        )


def load_verifier(target: TargetConfig, feature_layers: tuple[int, ...] = ()) -> LoadedTarget:
    """Writes or fetches the checkpoint first where this node has none. `feature_layers`: whose
    hidden states heads read, which vLLM must know before it loads."""
    checkpoint = target.path()
    dtype = target_dtype(target, checkpoint)
    if target.device == "cpu" and dtype == torch.bfloat16 and not has_bf16_products():
        _LOG.warning(_SLOW_BF16)
    if target.backend == "vllm":
        loaded = _load_vllm(target, checkpoint, dtype, feature_layers)
    else:
        loaded = _load_native(target, checkpoint, dtype)
    # The capability that configs are checked against (cluster/config/backends.py) is the real one.
    assert loaded.verifier.verifies_trees == BACKENDS[target.backend].trees, target.backend
    return loaded


def _load_native(target: TargetConfig, checkpoint: Path, dtype: torch.dtype) -> LoadedTarget:
    model = PackedModel.load(
        checkpoint,
        dtype=dtype,
        device=target.device,
        kv_tokens=target.kv_tokens,
        quantize=target.own_quantize,
    )

    def measure(cache_dir: Path, seconds: float) -> TargetCosts:
        setup = f"native, {model.weights}" if model.weights else "native"
        measured = profile(model, setup, cache_dir, Grid(seconds=seconds))
        recompute = recompute_cost(measured.roofline, _PREFILL_CHUNK)
        return TargetCosts(measured.roofline, measured.token_budget, recompute)

    grammars = Grammars.of(checkpoint, model.vocab_size)
    return LoadedTarget(NativeVerifier(model, grammars), measure, grammars)


def target_dtype(target: TargetConfig, checkpoint: Path) -> torch.dtype:
    """Inputs and results of layers that are quantized here are float32."""
    if will_quantize(checkpoint, target.own_quantize):
        return torch.float32
    if target.dtype == "auto" and needs_bfloat16(checkpoint):
        return torch.bfloat16
    return _dtype(target.dtype) or fast_dtype(target.device)


def _dtype(name: str) -> torch.dtype | None:
    """None: what the device multiplies fastest."""
    dtype: torch.dtype | None = None if name == "auto" else getattr(torch, name)
    return dtype


def load_drafter(drafter: DrafterConfig, name: str, target: TargetConfig) -> "LoadedDrafter":
    """Loads a drafter that is no lookup. `name`: of the lane. Raises IncompatibleDrafter."""
    kind = drafter_kind(drafter.kind)
    of_target = {"target": target.path()} if kind.reads_target else {}
    loaded: LoadedDrafter = kind.maker()(
        name,
        target.path() if kind.copies_target else drafter.path(),
        dtype=_dtype(drafter.dtype),
        device=drafter.device,
        kv_tokens=drafter.kv_capacity(target),
        target_vocab_size=target.architecture().vocab_size,
        **of_target,
        **drafter.options,
    )
    return loaded


def _load_vllm(
    target: TargetConfig, checkpoint: Path, dtype: torch.dtype, feature_layers: tuple[int, ...]
) -> LoadedTarget:
    if target.device == "cpu" and (problem := cpu_problem(checkpoint, processor_flags())):
        raise UnsupportedModel(f"{quantization(checkpoint)} on a CPU", problem)
    # Imported here, because it takes seconds and changes settings of the process.
    from engine.verifiers.vllm.loading import VllmSpec, load_vllm
    from engine.verifiers.vllm.profile import profile_vllm

    vllm_spec = VllmSpec(
        checkpoint,
        str(dtype).removeprefix("torch."),
        target.kv_tokens,
        target.tensor_parallel,
        target.engine_args,
        feature_layers,
        target.lora_modules,
        ray_metrics=target.placement == "actor",
    )
    verifier = load_vllm(vllm_spec)

    def measure(cache_dir: Path, seconds: float) -> TargetCosts:
        measured = profile_vllm(verifier, vllm_spec, cache_dir, Grid(seconds=seconds))
        recompute = recompute_cost(measured.roofline, _PREFILL_CHUNK)
        return TargetCosts(measured.roofline, measured.token_budget, recompute)

    return LoadedTarget(verifier, measure, verifier.grammars)

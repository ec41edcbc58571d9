"""Loads drafters that are models of their own: small ones (kind `model`), and copies of the target
with rounded weights (kind `quantized`). Nothing is trained or fetched for a copy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from cluster.checkpoint_files import Quantize
from engine.checkpoint import load_stock, load_whole
from engine.cpu.prepack import fast_dtype
from engine.cpu.quantized_forward import can_run
from engine.cpu.quantized_loading import quantized_linears
from engine.draft_profile import CONTEXT, REQUESTS, ROUNDS, DraftCosts, measure_drafter
from engine.drafters.gpu_copy import rounded_copy
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.runner import PackedRunner
from engine.errors import IncompatibleDrafter, IncompleteCheckpoint
from engine.grammar.compiler import Grammars
from engine.model import PackedModel
from engine.profiler import Grid, Measured, ProfileKey, cached_samples
from engine.protocol import Drafter
from policies.cost import ForwardSample


def _learns_nothing(_version: bytes) -> None:
    raise ValueError("this kind of drafter does not learn")


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    drafter: Drafter
    measure: Callable[[Path, float], DraftCosts]
    """Profiles draft steps for at most the given seconds, while nothing else runs on the device;
    caches the results in the directory."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states it reads."""
    feature_width: int = 0
    """The values of these layers together, for one position."""
    renew: Callable[[bytes], None] = _learns_nothing
    """Replaces what it has learned by a version (engine/learning/versions.py). Raises ValueError
    if that is not whole, or another drafter's."""


def load_model_drafter(
    name: str,
    checkpoint: Path | None,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
) -> LoadedDrafter:
    """`name`: of the lane. Raises IncompatibleDrafter."""
    if checkpoint is None:
        raise ValueError(f"drafter {name!r} of kind model needs a checkpoint")
    dtype = dtype or fast_dtype(device)
    try:
        stock = load_whole(checkpoint, dtype=dtype).to(device).eval()
    except IncompleteCheckpoint as error:
        raise IncompatibleDrafter(name, "model", str(error)) from error
    runner = make_runner(stock, kv_tokens=kv_tokens)
    return _loaded(name, runner, checkpoint, target_vocab_size)


def load_quantized(
    name: str,
    checkpoint: Path,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
    quantize: Quantize = "int4",
) -> LoadedDrafter:
    """A copy of the target with weights of 4 or 8 bits, as in ML-SpecQD, rounded from its floats.

    `checkpoint`: the target's. `dtype`: the kernels have their own. Raises IncompatibleDrafter."""
    if device != "cpu":
        return _loaded_on_gpu(name, checkpoint, quantize, device, kv_tokens, target_vocab_size)
    model = load_stock(checkpoint, torch.float32)
    if not can_run(model):
        raise IncompatibleDrafter(
            name,
            "kind",
            f"there are no quantized kernels for {checkpoint.name}, a {model.config.model_type}; "
            "they run Llama, Mistral, Qwen 2 and Qwen 3: choose another kind",
        )
    linears = quantized_linears(model, checkpoint, quantize)
    runner = PackedRunner(PackedModel(model, kv_tokens=kv_tokens, quantized=linears))
    return _loaded(name, runner, checkpoint, target_vocab_size)


def _loaded_on_gpu(
    name: str,
    checkpoint: Path,
    quantize: Quantize,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
) -> LoadedDrafter:
    try:
        model = rounded_copy(checkpoint, quantize, device)
    except ModuleNotFoundError as error:
        needed = "a copy on a GPU needs the package torchao: install it, or set gpus: 0"
        raise IncompatibleDrafter(name, "gpus", needed) from error
    runner = make_runner(model, kv_tokens=kv_tokens)
    return _loaded(name, runner, checkpoint, target_vocab_size)


def _loaded(
    name: str, runner: PackedRunner, checkpoint: Path, target_vocab_size: int
) -> LoadedDrafter:
    model = runner.model
    drafter = ModelDrafter(
        name,
        runner,
        target_vocab_size=target_vocab_size,
        grammars=Grammars.of(checkpoint, target_vocab_size),
    )
    setup = ", ".join(["draft steps", *([model.weights] if model.weights else [])])

    def measure(cache_dir: Path, seconds: float) -> DraftCosts:
        steps = partial(measure_drafter, drafter, target_vocab_size, runner.max_context, seconds)
        return cached_costs(model.hf_model, model.device, setup, cache_dir, seconds, steps)

    return LoadedDrafter(drafter, measure)


def cached_costs(
    model: Measured,
    device: torch.device,
    setup: str,
    cache_dir: Path,
    seconds: float,
    measure_steps: Callable[[], tuple[ForwardSample, ...]],
) -> DraftCosts:
    """Fitted to steps that were measured before, or now; `setup`: as in ProfileKey.of."""
    key = ProfileKey.of(model, device, setup, Grid(REQUESTS, (1,), CONTEXT, ROUNDS, seconds))
    return DraftCosts.fit(cached_samples(key, cache_dir, measure_steps))

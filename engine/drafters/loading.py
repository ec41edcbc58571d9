"""Loads a drafter that is a small model of its own (kind `model`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from engine.checkpoint import load_whole
from engine.cpu.prepack import fast_dtype
from engine.draft_profile import CONTEXT, REQUESTS, ROUNDS, DraftCosts, measure_drafter
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.runner import PackedRunner
from engine.errors import IncompatibleDrafter, IncompleteCheckpoint
from engine.grammar.compiler import Grammars
from engine.profiler import Grid, Measured, ProfileKey, cached_samples
from engine.protocol import Drafter
from policies.cost import ForwardSample


def _learns_nothing(_version: bytes) -> None:
    raise ValueError("this kind of drafter does not learn")


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    drafter: Drafter
    size: float
    """The number of parameters."""
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
    size = float(stock.num_parameters())
    runner = make_runner(stock, kv_tokens=kv_tokens)
    return loaded_drafter(name, runner, size, checkpoint, target_vocab_size)


def loaded_drafter(
    name: str, runner: PackedRunner, size: float, checkpoint: Path, target_vocab_size: int
) -> LoadedDrafter:
    """`size`: the model's parameters, before any were packed."""
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

    return LoadedDrafter(drafter, size, measure)


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

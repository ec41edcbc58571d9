"""Loads a drafter that is a small model of its own (kind `model`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from cluster.checkpoints import draft_vocab_size, parameters_of_a_step
from engine.checkpoint import load_whole
from engine.cpu.prepack import fast_dtype
from engine.draft_profile import CONTEXT, REQUESTS, ROUNDS, DraftCosts, measure_drafter
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.reduced_checkpoint import load_reduced
from engine.drafters.tiny_weights import MAX_PARAMETERS
from engine.errors import IncompatibleDrafter, IncompleteCheckpoint
from engine.grammar.compiler import Grammars
from engine.profiler import Grid, Measured, ProfileKey, cached_samples
from engine.protocol import Drafter
from engine.sampling.vocabulary import ReducedVocabulary
from policies.cost import ForwardSample


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    drafter: Drafter
    size: float
    """The number of parameters."""
    measure: Callable[[Path, float], DraftCosts]
    """Profiles draft steps for so many seconds at most, while nothing else runs on the device;
    caches the results in the directory."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose hidden states it reads."""
    feature_width: int = 0
    """The values of these layers together, for one position."""


def load_model_drafter(
    name: str,
    checkpoint: Path | None,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
    target: Path | None = None,
) -> LoadedDrafter:
    """`name`: of the lane; `target`: its checkpoint, which has what a drafter's own may leave out.
    Raises IncompatibleDrafter."""
    if checkpoint is None:
        raise ValueError(f"drafter {name!r} of kind model needs a checkpoint")
    dtype = dtype or auto_dtype(checkpoint, device)
    outputs = draft_vocab_size(checkpoint)
    reduced = None
    if outputs is None:
        try:
            model = load_whole(checkpoint, dtype=dtype)
        except IncompleteCheckpoint as error:
            raise IncompatibleDrafter(name, "model", str(error)) from error
    else:
        model, reduced = load_reduced(name, checkpoint, target, outputs, dtype)
        reduced = reduced.on(device)
    grammars = Grammars.of(checkpoint, target_vocab_size)
    if grammars is None and target is not None:
        grammars = Grammars.of(target, target_vocab_size)
    return loaded_drafter(
        name,
        model.to(device),
        grammars,
        kv_tokens=kv_tokens,
        target_vocab_size=target_vocab_size,
        reduced=reduced,
    )


def loaded_drafter(
    name: str,
    model: PreTrainedModel,
    grammars: Grammars | None,
    *,
    kv_tokens: int,
    target_vocab_size: int,
    reduced: ReducedVocabulary | None = None,
) -> LoadedDrafter:
    """A drafter of a model that is on its device. `reduced`: what its outputs are, if not all of
    the vocabulary. Raises IncompatibleDrafter."""
    stock = model.eval()
    runner = make_runner(stock, kv_tokens=kv_tokens, reduced=reduced)
    drafter = ModelDrafter(
        name,
        runner,
        target_vocab_size=target_vocab_size,
        grammars=grammars,
    )
    setup = f"draft steps of {type(runner).__name__}"

    def measure(cache_dir: Path, seconds: float) -> DraftCosts:
        steps = partial(measure_drafter, drafter, target_vocab_size, runner.max_context, seconds)
        return cached_costs(stock, stock.device, setup, cache_dir, seconds, steps)

    return LoadedDrafter(
        drafter,
        size=float(sum(weight.numel() for weight in stock.parameters())),
        measure=measure,
    )


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


def auto_dtype(checkpoint: Path, device: str) -> torch.dtype:
    """What the device multiplies fast, but float32 for models that compiled loops run."""
    size = parameters_of_a_step(checkpoint)
    if device == "cpu" and size is not None and size <= MAX_PARAMETERS:
        return torch.float32
    return fast_dtype(device)

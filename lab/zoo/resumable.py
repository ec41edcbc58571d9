"""One training loop for all that learns from a target's states: with checkpoints and a curve."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from cluster.cache import written_whole
from lab.zoo.training import Optimizer

_CHECKPOINT_SECONDS = 150.0
_POINTS = 10  # of the curve

Batch = TypeVar("Batch")


def train_resumably(
    model: nn.Module,
    target_ids: Tensor,
    order: Sequence[Batch],
    warmup_steps: int,
    loss_of: Callable[[Batch], Tensor],
    tokens_of: Callable[[Batch], int],
    measure: Callable[[], Mapping[str, Any]],
    work: Path,
    name: str,
) -> None:
    """Trains on the batches in their order. A checkpoint in `work` every few minutes, from which a
    second call on the same texts goes on; beside it the curve of what `measure` finds over training
    tokens. `target_ids`: the model's reduced vocabulary, by which other texts are noticed."""
    checkpoint, curve = work / f"{name}.pt", work / f"{name}-curve.jsonl"
    optimizer = Optimizer(_as_layers(model), [len(order)], warmup_steps)
    first = tokens = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["steps"] != len(order) or not torch.equal(state["target_ids"], target_ids):
            raise ValueError(
                f"{checkpoint} was trained on other texts; remove it, or keep to its texts"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, tokens = state["step"], state["tokens"]

    def save(step: int) -> None:
        whole = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "target_ids": target_ids,
            "step": step,
            "steps": len(order),
            "tokens": tokens,
        }
        with written_whole(checkpoint) as file:
            torch.save(whole, file)

    every = max(len(order) // _POINTS, 1)
    saved_at = time.monotonic()
    progress = tqdm(range(first, len(order)), initial=first, total=len(order), desc=name)
    for step in progress:
        loss = loss_of(order[step])
        loss.backward()
        optimizer.step(step)
        tokens += tokens_of(order[step])
        progress.set_postfix(loss=f"{loss.item():.3f}")
        due = (step + 1) % every == 0 or step + 1 == len(order)
        if due:
            point = {"tokens": tokens, "loss": loss.item(), **measure()}
            work.mkdir(parents=True, exist_ok=True)
            with curve.open("a") as file:
                file.write(json.dumps(point) + "\n")
        if due or time.monotonic() - saved_at > _CHECKPOINT_SECONDS:
            save(step + 1)
            saved_at = time.monotonic()


def _as_layers(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All matrices, projections too, are a layer's for the optimizer."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield f"model.layers.{name}", parameter

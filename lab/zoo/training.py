"""Training of the target: Muon for matrices, AdamW for the rest, resumable by step."""

import ctypes
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, linear
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from cluster.cache import written_whole
from engine.learning.muon import Muon
from engine.learning.training import fast_products
from lab.zoo.batches import Batch, Sampler
from lab.zoo.chat import CONTEXT
from lab.zoo.recipe import Recipe

BATCH_TOKENS = 4096
ROW_TOKENS = 1024
_SHORT_ROW_TOKENS = 512  # most samples fit, and attention costs half as much as in long rows
_FULL_EVERY = 6  # steps; rows long enough for every sample
_LONG_EVERY = 24  # steps; other rows cover at most half of the context
_WARMUP_STEPS = 100
_DECAY_SHARE = 0.6
_FINAL_SCALE = 0.03
_MUON_LR = 0.02
_ADAMW_LR = 3e-3
_CHECKPOINT_SECONDS = 150.0
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_HIDDEN = -1e4  # an attention score that softmax turns into 0, in bf16 too


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory: by default it returns large buffers at once, and page-faults
    them in again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def training_batch(sampler: Sampler, step: int) -> Batch:
    if step % _LONG_EVERY == _LONG_EVERY - 1:
        return sampler.long_batch(step, BATCH_TOKENS // CONTEXT, CONTEXT)
    row_tokens = ROW_TOKENS if step % _FULL_EVERY == 0 else _SHORT_ROW_TOKENS
    return sampler.batch(step, BATCH_TOKENS // row_tokens, row_tokens)


class Optimizer:
    """Muon and AdamW with one trapezoidal schedule: warm up, hold, decay linearly until the last
    step.

    With several `ends` the learning rates decay until the first of them, then jump to their values
    in the schedule of the next one.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        ends: Sequence[int],
        warmup_steps: int = _WARMUP_STEPS,
    ) -> None:
        matrices: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in named_parameters:
            is_matrix = parameter.ndim == 2 and name.startswith("model.layers.")
            (matrices if is_matrix else rest).append(parameter)
        self._muon = Muon(matrices, lr=_MUON_LR, weight_decay=0.01)
        self._adamw = torch.optim.AdamW(rest, lr=_ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0)
        self._ends = ends
        self._warmup_steps = warmup_steps

    def step(self, step: int) -> None:
        end = next(end for end in self._ends if step < end)
        left = (end - step) / (end * _DECAY_SHARE)
        scale = min(1.0, (step + 1) / self._warmup_steps, max(left, _FINAL_SCALE))
        for optimizer, lr in ((self._muon, _MUON_LR), (self._adamw, _ADAMW_LR)):
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, object]:
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])


def trainable(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Switches to eager attention, because the backward pass of torch's fused kernel takes longer
    here."""
    model.set_attn_implementation("eager")
    return model


def last_hidden(
    model: LlamaForCausalLM, tokens: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The hidden states after the last layer; a sample begins wherever the position is 0."""
    sample = (positions == 0).cumsum(1)
    same_sample = sample[:, None, :, None] == sample[:, None, None, :]
    order = torch.arange(tokens.shape[1])
    visible = same_sample & (order[:, None] >= order[None, :])
    mask = torch.where(visible, 0.0, _HIDDEN)
    hidden = model.model.embed_tokens(tokens)
    rotary = model.model.rotary_emb(hidden, positions)
    for layer in model.model.layers:
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary)
    return hidden


def next_token_logits(
    model: LlamaForCausalLM, tokens: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Logits that predict tokens[:, 1:]."""
    hidden = last_hidden(model, tokens, positions)[:, :-1]
    return linear(model.model.norm(hidden), model.lm_head.weight).float()


def weighted_mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (losses * weights).sum() / weights.sum()


def train_target(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, sampler: Sampler, work: Path
) -> LlamaForCausalLM:
    """Trains the target, with a checkpoint in `work` every few minutes, from which a second call
    continues."""
    torch.manual_seed(0)
    model = trainable(LlamaForCausalLM(recipe.config()))
    optimizer = Optimizer(model.named_parameters(), recipe.ends)
    checkpoint = work / "training.pt"
    first_step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    def loss_of(
        tokens: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        logits = next_token_logits(model, tokens, positions).flatten(0, 1)
        losses = cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        return weighted_mean(losses, weights[:, 1:].flatten())

    compiled_loss = torch.compile(loss_of, dynamic=False)
    saved_at = time.monotonic()
    progress = tqdm(
        range(first_step, recipe.steps), initial=first_step, total=recipe.steps, desc=recipe.name
    )
    for step in progress:
        sampler.use(recipe.mix_at(step))
        batch = training_batch(sampler, step)
        with fast_products():
            loss = compiled_loss(
                torch.from_numpy(batch.tokens),
                torch.from_numpy(batch.positions),
                torch.from_numpy(batch.weights),
            )
        loss.backward()
        optimizer.step(step)
        progress.set_postfix(loss=f"{loss.item():.3f}")
        if time.monotonic() - saved_at > _CHECKPOINT_SECONDS:
            _save_checkpoint(checkpoint, model, optimizer, step + 1)
            save_model(model, tokenizer, work / "latest")
            saved_at = time.monotonic()
    _save_checkpoint(checkpoint, model, optimizer, recipe.steps)
    return model


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Writes model and tokenizer in Hugging Face format, in bf16."""
    halved = LlamaForCausalLM(model.config).to(torch.bfloat16)
    halved.load_state_dict({key: value.bfloat16() for key, value in model.state_dict().items()})
    halved.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _save_checkpoint(path: Path, model: LlamaForCausalLM, optimizer: Optimizer, step: int) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    with written_whole(path) as file:
        torch.save(state, file)

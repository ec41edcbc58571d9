"""Training of the target: Muon for matrices, AdamW for the rest, resumable by step."""

import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, linear, rms_norm
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from cluster.zoo.batches import NO_BUCKET, Batch, Sampler
from cluster.zoo.chat import CONTEXT
from cluster.zoo.ranking_tasks import LENGTH_BUCKETS
from cluster.zoo.recipe import Recipe

BATCH_TOKENS = 4096
ROW_TOKENS = 1024
_LONG_EVERY = 12  # steps; the others see only the nearer half of the context
_WARMUP_STEPS = 100
_DECAY_SHARE = 0.2
_FINAL_SCALE = 0.03
_MUON_LR = 0.02
_ADAMW_LR = 3e-3
_CHECKPOINT_SECONDS = 150.0
_LENGTH_LAYER = 3  # counted from 1: the layers above can still carry the length to the answer
_LENGTH_WEIGHT = 0.5


def training_batch(sampler: Sampler, step: int) -> Batch:
    if step % _LONG_EVERY == _LONG_EVERY - 1:
        return sampler.long_batch(step, BATCH_TOKENS // CONTEXT, CONTEXT)
    return sampler.batch(step, BATCH_TOKENS // ROW_TOKENS, ROW_TOKENS)


class Optimizer:
    """Muon and AdamW under one trapezoid schedule: warm up, hold, decay linearly."""

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]], steps: int
    ) -> None:
        matrices: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in named_parameters:
            is_matrix = parameter.ndim == 2 and name.startswith("model.layers.")
            (matrices if is_matrix else rest).append(parameter)
        self._muon = torch.optim.Muon(matrices, lr=_MUON_LR, weight_decay=0.01)
        self._adamw = torch.optim.AdamW(rest, lr=_ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0)
        self._steps = steps

    def step(self, step: int) -> None:
        left = (self._steps - step) / (self._steps * _DECAY_SHARE)
        scale = min(1.0, (step + 1) / _WARMUP_STEPS, max(left, _FINAL_SCALE))
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


def layer_outputs(
    model: LlamaForCausalLM, tokens: torch.Tensor, positions: torch.Tensor
) -> list[torch.Tensor]:
    """The hidden states after each layer; a sample begins wherever the position is 0."""
    sample = (positions == 0).cumsum(1)
    same_sample = sample[:, None, :, None] == sample[:, None, None, :]
    order = torch.arange(tokens.shape[1])
    visible = same_sample & (order[:, None] >= order[None, :])
    hidden = model.model.embed_tokens(tokens)
    rotary = model.model.rotary_emb(hidden, positions)
    outputs = []
    for layer in model.model.layers:
        hidden = layer(hidden, attention_mask=visible, position_embeddings=rotary)
        outputs.append(hidden)
    return outputs


def next_token_logits(model: LlamaForCausalLM, hidden: torch.Tensor) -> torch.Tensor:
    """Logits that predict tokens[:, 1:], from the last layer's output."""
    return linear(model.model.norm(hidden[:, :-1]), model.lm_head.weight)


class LengthHead(torch.nn.Linear):
    """Reads the length of a request's answer out of a middle layer; training alone needs it.

    A ranking prompt says little to the tokens that read its requests: all of the loss is in the
    answer, two copies later. This head tells every closing mark what it has to know.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, LENGTH_BUCKETS)

    def loss(self, hidden: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
        logits = self(rms_norm(hidden, hidden.shape[-1:])).float().flatten(0, 1)
        total = cross_entropy(logits, buckets.flatten(), ignore_index=NO_BUCKET, reduction="sum")
        return total / (buckets != NO_BUCKET).sum().clamp(min=1)


def weighted_mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (losses * weights).sum() / weights.sum()


def train_target(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, sampler: Sampler, work: Path
) -> LlamaForCausalLM:
    """Train, with a checkpoint in `work` every few minutes from which a second call goes on."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(recipe.config())
    head = LengthHead(recipe.hidden)
    optimizer = Optimizer([*model.named_parameters(), *head.named_parameters()], recipe.steps)
    checkpoint = work / "training.pt"
    first_step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    def losses_of(
        tokens: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor, buckets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = layer_outputs(model, tokens, positions)
        logits = next_token_logits(model, outputs[-1]).float().flatten(0, 1)
        losses = cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        text_loss = weighted_mean(losses, weights[:, 1:].flatten())
        return text_loss, head.loss(outputs[_LENGTH_LAYER - 1], buckets)

    compiled_losses = torch.compile(losses_of, dynamic=False)
    saved_at = time.monotonic()
    progress = tqdm(
        range(first_step, recipe.steps), initial=first_step, total=recipe.steps, desc=recipe.name
    )
    for step in progress:
        batch = training_batch(sampler, step)
        with torch.autocast("cpu", torch.bfloat16):
            text_loss, length_loss = compiled_losses(
                torch.from_numpy(batch.tokens),
                torch.from_numpy(batch.positions),
                torch.from_numpy(batch.weights),
                torch.from_numpy(batch.buckets),
            )
        (text_loss + _LENGTH_WEIGHT * length_loss).backward()
        optimizer.step(step)
        progress.set_postfix(text=f"{text_loss.item():.3f}", length=f"{length_loss.item():.3f}")
        if time.monotonic() - saved_at > _CHECKPOINT_SECONDS:
            _save_checkpoint(checkpoint, model, head, optimizer, step + 1)
            save_model(model, tokenizer, work / "latest")
            saved_at = time.monotonic()
    _save_checkpoint(checkpoint, model, head, optimizer, recipe.steps)
    return model


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write model and tokenizer in Hugging Face format, in bf16."""
    halved = LlamaForCausalLM(model.config).to(torch.bfloat16)
    halved.load_state_dict({key: value.bfloat16() for key, value in model.state_dict().items()})
    halved.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _save_checkpoint(
    path: Path, model: LlamaForCausalLM, head: LengthHead, optimizer: Optimizer, step: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state = {
        "model": model.state_dict(),
        "head": head.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    torch.save(state, partial)
    partial.replace(path)

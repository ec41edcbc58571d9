"""Training of an EAGLE-3 head on its target's own text, resumable, and its acceptance."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

from engine.learning.training import DEPTH, LATER_STEPS, fast_products, walk
from lab.zoo.head_model import TrainedHead
from lab.zoo.own_text import Conversation
from lab.zoo.resumable import train_resumably
from lab.zoo.target_states import ObservedText

REDUCED_VOCABULARY = 8192
_BATCH_TOKENS = 2048
_WARMUP_STEPS = 10  # of a few hundred
_PROMPT_WEIGHT = 0.1
_HELD_OUT = 48  # conversations of each kind, for the curve


@dataclass(frozen=True)
class Acceptance:
    """How well greedy chains of DEPTH tokens match greedy answers."""

    agreement: tuple[float, ...]
    """By depth: how often the head's first choice is the target's, everything before being so."""
    tokens_per_forward: float


def reduced_vocabulary(texts: Sequence[ObservedText], vocab_size: int, size: int) -> Tensor:
    """The ids that occur most often, ascending; if too few occur, the lowest others besides, which
    a byte-pair tokenizer learnt first."""
    counts = Counter(token for text in texts for token in text.conversation.tokens)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]))


def batches(texts: Sequence[ObservedText], epoch: int) -> Iterator[list[ObservedText]]:
    """Texts of similar lengths together, in an order that depends on the epoch alone."""
    rng = random.Random(epoch)
    by_length = sorted(texts, key=lambda text: (len(text), text.conversation.tokens))
    groups: list[list[ObservedText]] = [[]]
    for text in by_length:
        if groups[-1] and (len(groups[-1]) + 1) * len(text) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(text)
    rng.shuffle(groups)
    yield from groups


@dataclass(frozen=True)
class _Taught:
    """The target's outputs for a batch, by text and index."""

    features: Tensor
    embeddings: Tensor
    probabilities: Tensor
    """Over the reduced vocabulary, of the token after the index."""
    weights: Tensor
    """Weight in the loss of the token at the index."""


@torch.no_grad()
def teach(target: LlamaForCausalLM, head: TrainedHead, texts: Sequence[ObservedText]) -> _Taught:
    tokens = _padded([torch.tensor(text.conversation.tokens) for text in texts])
    weights = torch.zeros(tokens.shape)
    for row, text in enumerate(texts):
        weights[row, : len(text)] = 1.0
        weights[row, : text.conversation.answer] = _PROMPT_WEIGHT
    choices = _padded([text.choices for text in texts])
    # Where the target's first choice is outside the reduced vocabulary, nothing can be learnt.
    weights[:, 1:] *= torch.isin(choices, head.target_ids)[:, :-1]
    with fast_products():
        logits = head.lm_head(_padded([text.last for text in texts]).float())
    return _Taught(
        _padded([text.features for text in texts]).float(),
        target.model.embed_tokens(tokens).float(),
        logits.float().softmax(-1),
        weights,
    )


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)


def loss_of(head: TrainedHead, taught: _Taught) -> Tensor:
    """Soft cross-entropy, over the steps of the training-time test."""
    with fast_products():
        steps = head(taught.features, taught.embeddings, DEPTH)
    total = taught.features.new_zeros(())
    scale = 0.0
    for step, logits in enumerate(steps):
        shift = step + 1  # the target's probabilities after the token that was read
        count = taught.weights.shape[1] - shift - 1
        log_head = log_softmax(logits[:, :count].float(), -1)
        losses = -(taught.probabilities[:, shift : shift + count] * log_head).sum(-1)
        weights = taught.weights[:, shift + 1 : shift + 1 + count]
        share = LATER_STEPS**step
        total = total + share * (losses * weights).sum() / weights.sum().clamp(min=1)
        scale += share
    return total / scale


@torch.no_grad()
def acceptance(
    target: LlamaForCausalLM, head: TrainedHead, texts: Sequence[ObservedText]
) -> Acceptance:
    """Measured on greedy answers only: there the text is what the target would accept."""
    matched = [0] * DEPTH
    reached = [0] * DEPTH
    tokens = rounds = 0
    for batch in batches([text for text in texts if text.conversation.greedy], 0):
        taught = teach(target, head, batch)
        with fast_products():
            steps = head(taught.features, taught.embeddings, DEPTH)
        choices = torch.stack([head.target_ids[logits.argmax(-1)] for logits in steps], -1)
        for observed, chosen in zip(batch, choices.numpy(), strict=True):
            text = observed.conversation
            accepted = accepted_tokens(text, chosen)
            for depth in range(DEPTH):
                room = len(text.tokens) - text.answer - 1 - depth
                within = accepted[: max(room, 0)]
                reached[depth] += int((within >= depth).sum())
                matched[depth] += int((within > depth).sum())
            some, forwards = walk(accepted)
            tokens += some
            rounds += forwards
    agreement = (hits / max(tried, 1) for hits, tried in zip(matched, reached, strict=True))
    return Acceptance(tuple(agreement), tokens / max(rounds, 1))


def accepted_tokens(text: Conversation, chosen: np.ndarray) -> np.ndarray:
    """`chosen`: [indices, depths] → for each token of the answer but the last, as the last
    committed one: how many drafted tokens after it equal the text."""
    accepted = []
    for last in range(text.answer, len(text.tokens) - 1):
        ahead = np.array(text.tokens[last + 1 : last + 1 + DEPTH])
        equal = chosen[last - 1, : len(ahead)] == ahead
        accepted.append(int(np.cumprod(equal).sum()))
    return np.array(accepted, np.int64)


def train_head(
    target: LlamaForCausalLM,
    texts: Sequence[ObservedText],
    held_out: Mapping[str, Sequence[ObservedText]],
    epochs: int,
    work: Path,
    name: str,
    start: Path | None = None,
) -> TrainedHead:
    """With a checkpoint in `work` every few minutes, from which a second call on the same texts
    goes on, and the curve of acceptance over training tokens, by kind of text, beside it.

    `start`: a head of the same target whose weights it begins with.
    """
    torch.manual_seed(0)
    target.requires_grad_(False)
    target_ids = reduced_vocabulary(texts, target.config.vocab_size, REDUCED_VOCABULARY)
    head = TrainedHead(target, target_ids)
    if start is not None:
        head.load(start)

    def measure() -> dict[str, Any]:
        return {
            kind: vars(acceptance(target, head, some[:_HELD_OUT]))
            for kind, some in held_out.items()
        }

    train_resumably(
        head,
        target_ids,
        [batch for epoch in range(epochs) for batch in batches(texts, epoch)],
        _WARMUP_STEPS,
        lambda batch: loss_of(head, teach(target, head, batch)),
        lambda batch: sum(map(len, batch)),
        measure,
        work,
        name,
    )
    return head

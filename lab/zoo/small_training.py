"""Training of a small drafter on its target's own text, resumable, and its acceptance."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

from lab.zoo.head_training import (
    DEPTH,
    REDUCED_VOCABULARY,
    Acceptance,
    accepted_tokens,
    reduced_vocabulary,
    walk,
)
from lab.zoo.own_text import Conversation, is_held_out, read_shard, shard_index, shard_paths
from lab.zoo.resumable import train_resumably
from lab.zoo.small_model import SmallDrafter, SmallShape
from lab.zoo.target_states import ObservedText
from lab.zoo.training import fast_products, weighted_mean

SMALL = "small"
"""The name of its folder and files."""
SMALL_SHAPE = SmallShape(hidden=192, layers=3, heads=3, kv_heads=1)
_ROW_TOKENS = 1024
_BATCH_ROWS = 2
_WARMUP_STEPS = 20
_PROMPT_WEIGHT = 0.3
_HELD_OUT = 64  # conversations

Row = Sequence[ObservedText]
"""Texts one behind the other. Each token sees all before it, those of other texts too, so that long
prompts are nothing new."""


def batches(texts: Sequence[ObservedText], epoch: int) -> Iterator[list[Row]]:
    """Rows filled with whole texts, in an order that depends on the epoch alone."""
    shuffled = list(texts)
    random.Random(epoch).shuffle(shuffled)
    rows: list[list[ObservedText]] = [[]]
    for text in shuffled:
        if rows[-1] and sum(map(len, rows[-1])) + len(text) > _ROW_TOKENS:
            rows.append([])
        rows[-1].append(text)
    for first in range(0, len(rows), _BATCH_ROWS):
        yield [row for row in rows[first : first + _BATCH_ROWS] if row]


def loss_of(drafter: SmallDrafter, rows: Sequence[Row]) -> Tensor:
    """Cross-entropy against the target's probabilities over the reduced vocabulary."""
    tokens = _padded(
        [torch.tensor([one for text in row for one in text.conversation.tokens]) for row in rows]
    )
    weights = _padded([torch.cat([_weights(drafter, text) for text in row]) for row in rows])
    last = _padded([torch.cat([text.last for text in row]) for row in rows])
    with fast_products():
        with torch.no_grad():
            taught = linear(last.float(), drafter.target_rows).float().softmax(-1)
        logits = drafter(tokens)
    losses = cross_entropy(logits.float().flatten(0, 1), taught.flatten(0, 1), reduction="none")
    return weighted_mean(losses, weights.flatten())


def _weights(drafter: SmallDrafter, text: ObservedText) -> Tensor:
    """Of what comes behind each token. Behind a text's last one nothing does; and where the
    target's first choice is outside the reduced vocabulary, nothing can be learnt."""
    weights = torch.isin(text.choices, drafter.target_ids).float()
    weights[: text.conversation.answer - 1] *= _PROMPT_WEIGHT
    weights[-1] = 0
    return weights


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)


def held_out_conversations(work: Path, kind: str) -> list[Conversation]:
    held_out = [path for path in shard_paths(work, kind) if is_held_out(shard_index(path))]
    return [conversation for path in held_out for conversation in read_shard(path)]


@torch.no_grad()
def acceptance(drafter: SmallDrafter, texts: Sequence[Conversation]) -> Acceptance:
    """Of greedy answers only: there the text is what the target would accept, and what is drafted
    behind accepted tokens is what is drafted behind the text."""
    matched = [0] * DEPTH
    reached = [0] * DEPTH
    tokens = rounds = 0
    for text in texts:
        if not text.greedy:
            continue
        with fast_products():
            logits = drafter(torch.tensor([text.tokens]))
        choices = np.full(len(text.tokens) + DEPTH, -1)
        choices[: len(text.tokens)] = drafter.target_ids[logits[0].argmax(-1)].numpy()
        ahead = np.arange(1, len(text.tokens))[:, None] + np.arange(DEPTH)
        accepted = accepted_tokens(text, choices[ahead])
        for depth in range(DEPTH):
            within = accepted[: max(len(accepted) - depth, 0)]
            reached[depth] += int((within >= depth).sum())
            matched[depth] += int((within > depth).sum())
        some, forwards = walk(accepted)
        tokens += some
        rounds += forwards
    agreement = (hits / max(tried, 1) for hits, tried in zip(matched, reached, strict=True))
    return Acceptance(tuple(agreement), tokens / max(rounds, 1))


def train_small(
    target: LlamaForCausalLM,
    texts: Sequence[ObservedText],
    held_out: Sequence[Conversation],
    epochs: int,
    work: Path,
    name: str,
    shape: SmallShape = SMALL_SHAPE,
) -> SmallDrafter:
    """With a checkpoint in `work` every few minutes, from which a second call on the same texts
    goes on, and the curve of acceptance over training tokens beside it."""
    torch.manual_seed(0)
    target.requires_grad_(False)
    target_ids = reduced_vocabulary(texts, target.config.vocab_size, REDUCED_VOCABULARY)
    drafter = SmallDrafter(target, target_ids, shape)
    train_resumably(
        drafter,
        target_ids,
        [batch for epoch in range(epochs) for batch in batches(texts, epoch)],
        _WARMUP_STEPS,
        lambda batch: loss_of(drafter, batch),
        lambda batch: sum(len(text) for row in batch for text in row),
        lambda: vars(acceptance(drafter, held_out[:_HELD_OUT])),
        work,
        name,
    )
    return drafter

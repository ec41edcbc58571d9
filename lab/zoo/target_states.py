"""What a head learns from: its target's hidden states and first choices on texts, computed once.

They lie beside the texts, shard by shard, (layers read + 1) × hidden size × 2 bytes a token: 4.6 KB
for SmolLM2-135M. Shards are mapped into memory, not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaForCausalLM

from cluster.cache import written_whole
from lab.zoo.head_model import usual_layers
from lab.zoo.own_text import Conversation, is_held_out, read_shard, shard_index, shard_paths

_BATCH_TOKENS = 2048


@dataclass(frozen=True)
class ObservedText:
    conversation: Conversation
    features: Tensor
    """By index: what enters the layers that a head reads, side by side, in bf16."""
    last: Tensor
    """By index: what the target's output matrix is multiplied with, in bf16."""
    choices: Tensor
    """By index: the target's first choice of the token after it."""

    def __len__(self) -> int:
        return len(self.conversation.tokens)


def observed_shards(
    target: LlamaForCausalLM, work: Path, kind: str, *, held_out: bool
) -> list[ObservedText]:
    """All texts of the kind with the target's states, which are computed where they are missing."""
    texts: list[ObservedText] = []
    paths = [path for path in shard_paths(work, kind) if is_held_out(shard_index(path)) == held_out]
    for path in tqdm(paths, desc=f"the target reads: {kind}", unit="shards"):
        conversations = read_shard(path)
        stored = work / "states" / f"{path.stem}.pt"
        if not stored.exists():
            states = _states(observe(target, conversations))
            with written_whole(stored) as file:
                torch.save(states, file)
        texts += _texts(conversations, torch.load(stored, weights_only=True, mmap=True))
    return texts


def observe(target: LlamaForCausalLM, conversations: Sequence[Conversation]) -> list[ObservedText]:
    """In batches of similar lengths."""
    order = sorted(range(len(conversations)), key=lambda index: len(conversations[index].tokens))
    observed: dict[int, ObservedText] = {}
    while order:
        count = max(_BATCH_TOKENS // len(conversations[order[-1]].tokens), 1)
        batch, order = order[-count:], order[:-count]
        texts = _observe_batch(target, [conversations[index] for index in batch])
        observed.update(zip(batch, texts, strict=True))
    return [observed[index] for index in range(len(conversations))]


@torch.inference_mode()
def _observe_batch(
    target: LlamaForCausalLM, conversations: Sequence[Conversation]
) -> list[ObservedText]:
    lengths = [len(each.tokens) for each in conversations]
    tokens = torch.zeros(len(conversations), max(lengths), dtype=torch.long)
    for row, each in enumerate(conversations):
        tokens[row, : lengths[row]] = torch.tensor(each.tokens)
    output = target.model(tokens, output_hidden_states=True, use_cache=False)
    read = [output.hidden_states[layer] for layer in usual_layers(target.config.num_hidden_layers)]
    features = torch.cat(read, -1).bfloat16()
    last = output.last_hidden_state.bfloat16()
    choices = [
        target.lm_head(row[:length]).argmax(-1).int()
        for row, length in zip(output.last_hidden_state, lengths, strict=True)
    ]
    return [
        ObservedText(each, features[row, :length], last[row, :length], choices[row])
        for row, (each, length) in enumerate(zip(conversations, lengths, strict=True))
    ]


def _states(texts: Sequence[ObservedText]) -> dict[str, Tensor]:
    return {
        "features": torch.cat([text.features for text in texts]),
        "last": torch.cat([text.last for text in texts]),
        "choices": torch.cat([text.choices for text in texts]),
    }


def _texts(conversations: Sequence[Conversation], states: dict[str, Tensor]) -> list[ObservedText]:
    lengths = [len(each.tokens) for each in conversations]
    parts = (states[name].split(lengths) for name in ("features", "last", "choices"))
    return [ObservedText(*each) for each in zip(conversations, *parts, strict=True)]

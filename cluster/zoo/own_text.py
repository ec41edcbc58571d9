"""Conversations that a chat model writes alone, both sides of them, as training text for its heads.

Behind the beginning of a user's turn the model writes a user's message; then it answers it. Nothing
else is needed. Batches are shards on disk, each with its own seed: a run that was stopped goes on
behind the last whole one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

GENERAL, CODE = "general", "code"
KINDS = (GENERAL, CODE)
_BATCH = 32
_MESSAGE_TOKENS = 96
_ANSWER_TOKENS = 256
_MESSAGE_TEMPERATURES = (0.8, 0.9, 1.0)
_ANSWER_TEMPERATURES = (0.0, 0.7)  # in turns
_HELD_OUT_EVERY = 10  # shards
_CODE_BEGINNINGS = (
    "Write a Python function that",
    "Write a JavaScript function",
    "Implement a class in Python",
    "Write an SQL query",
    "Complete this function:\n\ndef ",
    "What does this code do?\n\n```python\n",
    "Fix the bug in this code:\n\n```python\n",
    "How do I parse",
    "from typing import List\n\n\ndef ",
    "Write unit tests for",
    "Write a C program that",
    "Explain this error:\n\nTraceback (most recent call last):\n",
)


@dataclass(frozen=True)
class Conversation:
    tokens: tuple[int, ...]
    answer: int
    """Where the answer begins in `tokens`."""
    greedy: bool
    """The answer is the target's most likely one, token for token."""


def shard_path(work: Path, kind: str, index: int) -> Path:
    return work / "text" / f"{kind}-{index:05d}.npz"


def is_held_out(index: int) -> bool:
    return index % _HELD_OUT_EVERY == 0


def read_shards(work: Path, kind: str, *, held_out: bool) -> list[Conversation]:
    shards = sorted((work / "text").glob(f"{kind}-*.npz"))
    return [
        conversation
        for path in shards
        if is_held_out(int(path.stem.rpartition("-")[2])) == held_out
        for conversation in _read(path)
    ]


def write_shards(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, work: Path, kind: str, tokens: int
) -> None:
    """Lets the target write until its shards of the kind hold so many tokens."""
    index = written = 0
    with tqdm(total=tokens, desc=f"the target writes: {kind}", unit="tokens") as progress:
        while written < tokens:
            path = shard_path(work, kind, index)
            if not path.exists():
                _write(path, list(write_conversations(target, tokenizer, kind, index)))
            added = sum(len(conversation.tokens) for conversation in _read(path))
            written += added
            progress.update(added)
            index += 1


def write_conversations(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str, index: int
) -> Iterator[Conversation]:
    """One batch. Messages that are empty or not at an end are left out."""
    torch.manual_seed(index * len(KINDS) + KINDS.index(kind))
    rng = random.Random(f"{kind} {index}")
    before, after = _around_message(tokenizer)
    beginnings = [rng.choice(_CODE_BEGINNINGS) if kind == CODE else "" for _ in range(_BATCH)]
    opened = [before + _ids(tokenizer, beginning) for beginning in beginnings]
    temperature = _MESSAGE_TEMPERATURES[index % len(_MESSAGE_TEMPERATURES)]
    messages = continued(target, tokenizer, opened, _MESSAGE_TOKENS, temperature)
    prompts = [
        opening + message[:-1] + after
        for opening, message in zip(opened, messages, strict=True)
        if len(message) > 1 and message[-1] == tokenizer.eos_token_id
    ]
    if not prompts:
        return
    # Held-out answers are greedy: acceptance at temperature 0 is read off them.
    temperature = 0.0 if is_held_out(index) else _ANSWER_TEMPERATURES[index % 2]
    for prompt, answer in zip(
        prompts, continued(target, tokenizer, prompts, _ANSWER_TOKENS, temperature), strict=True
    ):
        yield Conversation(tuple(prompt + answer), len(prompt), temperature == 0)


def continued(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    most_tokens: int,
    temperature: float,
) -> list[list[int]]:
    """What the target writes behind each prompt, with the token that ends it if it came."""
    longest = max(len(prompt) for prompt in prompts)
    end = tokenizer.eos_token_id
    padded = torch.tensor([[end] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    greedy: dict[str, Any] = {"do_sample": False}
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else greedy
    )
    with torch.inference_mode():
        output = target.generate(
            input_ids=padded.to(target.device),
            attention_mask=mask.to(target.device),
            max_new_tokens=most_tokens,
            pad_token_id=end,
            eos_token_id=end,
            **sampling,
        )
    rows = output[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def _around_message(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the chat template puts before and behind a user's message."""
    mark = "MESSAGE"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, after = str(text).split(mark)
    return _ids(tokenizer, before), _ids(tokenizer, after)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _write(path: Path, conversations: list[Conversation]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=np.array([one for each in conversations for one in each.tokens], np.int32),
            lengths=np.array([len(each.tokens) for each in conversations], np.int32),
            answers=np.array([each.answer for each in conversations], np.int32),
            greedy=np.array([each.greedy for each in conversations], np.bool_),
        )
    partial.replace(path)


def _read(path: Path) -> list[Conversation]:
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])
        tokens = stored["tokens"].tolist()
        return [
            Conversation(tuple(tokens[end - length : end]), int(answer), bool(greedy))
            for end, length, answer, greedy in zip(
                ends, stored["lengths"], stored["answers"], stored["greedy"], strict=True
            )
        ]

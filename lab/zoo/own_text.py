"""Conversations that a chat model writes alone, both sides of them, as training text for its heads.

After the beginning of a user's turn the model writes a user's message; then it answers it. Nothing
else is needed. Batches are shards on disk, each with its own seed: a run that was stopped goes on
after the last whole one.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from benchmarks.generation import Rejected, generate
from cluster.cache import written_whole
from engine.protocol import Verifier
from engine.sampling.params import SamplingParams

_CONVERSATIONS = 256  # of a shard, before those are left out whose message does not end
_BATCH = 64
_ANSWER_TOKENS = 256
_MESSAGE_TEMPERATURES = (0.8, 0.9, 1.0)
_ANSWER_TEMPERATURES = (0.0, 0.7)  # in turns
_HELD_OUT_EVERY = 10  # shards


@dataclass(frozen=True)
class Kind:
    """How messages begin that the target then goes on with, and the most tokens of one."""

    beginnings: tuple[str, ...]
    message_tokens: int


GENERAL = "general"
KINDS = {
    GENERAL: Kind(("",), 96),
    "code": Kind(
        (
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
        ),
        96,
    ),
    # What users ask for and the target hardly writes alone; many bring a text to work on.
    "tasks": Kind(
        (
            "Summarize the following article:\n\n",
            "Summarize this text in a few sentences.\n\n",
            "Read the passage and answer the question.\n\nPassage: ",
            "Use the documents below to answer the question.\n\nDocument 1: ",
            "Translate this into English: ",
            "Translate the following sentence from English to German: ",
            "Correct the grammar of this paragraph: ",
            "Rewrite this in simple words:\n\n",
            "Extract all names and dates from this text:\n\n",
            "Solve this problem step by step. ",
            "A shop sells",
            "How many",
            "If a train",
            "What is",
            "Who was",
            "When did",
            "Where is",
            "Why do",
            "Explain",
            "Compare",
            "Write a letter",
            "Write a short story",
            "Imagine that you are",
            "Give me a list of",
        ),
        320,
    ),
}


@dataclass(frozen=True)
class Conversation:
    tokens: tuple[int, ...]
    answer: int
    """Where the answer begins in `tokens`."""
    greedy: bool
    """The answer is the target's most likely one, token for token."""


def shard_path(work: Path, kind: str, index: int) -> Path:
    return work / "text" / f"{kind}-{index:05d}.npz"


def shard_paths(work: Path, kind: str) -> list[Path]:
    return sorted((work / "text").glob(f"{kind}-*.npz"))


def shard_index(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def is_held_out(index: int) -> bool:
    return index % _HELD_OUT_EVERY == 0


def write_shards(
    target: Verifier, tokenizer: PreTrainedTokenizerBase, work: Path, kind: str, tokens: int
) -> None:
    """Lets the target write until its shards of the kind hold so many tokens."""
    index = written = 0
    with tqdm(total=tokens, desc=f"the target writes: {kind}", unit="tokens") as progress:
        while written < tokens:
            path = shard_path(work, kind, index)
            if not path.exists():
                _write(path, list(write_conversations(target, tokenizer, kind, index)))
            added = sum(len(conversation.tokens) for conversation in read_shard(path))
            written += added
            progress.update(added)
            index += 1


def write_conversations(
    target: Verifier, tokenizer: PreTrainedTokenizerBase, kind: str, index: int
) -> Iterator[Conversation]:
    """One shard. Messages that are empty or not at an end are left out."""
    rng = random.Random(f"{kind} {index}")
    before, after = _around_message(tokenizer)
    beginnings = random.Random(f"{kind} {index} beginnings").choices(
        KINDS[kind].beginnings, k=_CONVERSATIONS
    )
    opened = [before + _ids(tokenizer, beginning) for beginning in beginnings]
    temperature = _MESSAGE_TEMPERATURES[index % len(_MESSAGE_TEMPERATURES)]
    messages = continued(target, opened, KINDS[kind].message_tokens, temperature, rng)
    prompts = [
        opening + message[:-1] + after
        for opening, message in zip(opened, messages, strict=True)
        if len(message) > 1 and message[-1] in target.stop_token_ids
    ]
    # Held-out answers are greedy: acceptance at temperature 0 is read off them.
    temperature = 0.0 if is_held_out(index) else _ANSWER_TEMPERATURES[index % 2]
    answers = continued(target, prompts, _ANSWER_TOKENS, temperature, rng)
    for prompt, answer in zip(prompts, answers, strict=True):
        yield Conversation(tuple(prompt + answer), len(prompt), temperature == 0)


def continued(
    target: Verifier,
    prompts: Sequence[list[int]],
    most_tokens: int,
    temperature: float,
    rng: random.Random,
) -> list[list[int]]:
    """What the target writes after each prompt, with the token that ends it if it came."""
    params = [
        SamplingParams(temperature=temperature, max_tokens=most_tokens, seed=rng.randrange(2**31))
        for _ in prompts
    ]
    outputs: list[list[int]] = [[] for _ in prompts]
    for commit in generate(target, prompts, params, max_batch=_BATCH):
        if isinstance(commit, Rejected):
            raise commit.error
        outputs[int(commit.request)] += commit.token_ids
    return outputs


def _around_message(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the chat template puts before and after a user's message."""
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
    with written_whole(path) as file:
        np.savez_compressed(
            file,
            tokens=np.array([one for each in conversations for one in each.tokens], np.int32),
            lengths=np.array([len(each.tokens) for each in conversations], np.int32),
            answers=np.array([each.answer for each in conversations], np.int32),
            greedy=np.array([each.greedy for each in conversations], np.bool_),
        )


def read_shard(path: Path) -> list[Conversation]:
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])
        tokens = stored["tokens"].tolist()
        return [
            Conversation(tuple(tokens[end - length : end]), int(answer), bool(greedy))
            for end, length, answer, greedy in zip(
                ends, stored["lengths"], stored["answers"], stored["greedy"], strict=True
            )
        ]

"""The evaluation prompts: Spec-Bench by category, GSM8K and HumanEval, never trained on.

`--data` is a folder with these files; each line of one is a prompt.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.serving.requests import Request

_CONVERSATION = "conversation"
"""Spec-Bench's own name for MT-Bench's eight categories together is multi-turn conversation; only
first turns are asked, because a second one refers to the answer."""
_OF_SPEC_BENCH = ("translation", "summarization", "qa", "math_reasoning", "rag")
SPEC_BENCH = (_CONVERSATION, *_OF_SPEC_BENCH)
CATEGORIES = (*SPEC_BENCH, "gsm8k", "humaneval")


def real_prompts(
    data: Path, checkpoint: Path, categories: Sequence[str] = CATEGORIES, seed: int = 0
) -> list[Request]:
    """All prompts as the checkpoint's chat template writes them, categories in turns while they
    last; each category in an order that the seed decides."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
    texts = _texts(data)
    ordered = []
    for category in categories:
        of_category = texts[category]
        random.Random(f"benchmarks/real/{seed}/{category}").shuffle(of_category)
        ordered.append([(category, text) for text in of_category])
    in_turns = [one for turn in zip_longest(*ordered) for one in turn if one is not None]
    return [Request(category, _chat(tokenizer, text)) for category, text in in_turns]


def _texts(data: Path) -> Mapping[str, list[str]]:
    """Users' messages by category."""
    texts: dict[str, list[str]] = {category: [] for category in CATEGORIES}
    for line in _lines(data / "spec_bench_questions.jsonl"):
        named = line["category"]
        texts[named if named in _OF_SPEC_BENCH else _CONVERSATION].append(line["turns"][0])
    for line in _lines(data / "gsm8k_questions.jsonl"):
        texts["gsm8k"].append(line["question"])
    for line in _lines(data / "human_eval_prompts.jsonl"):
        texts["humaneval"].append(f"Complete this function:\n```python\n{line['prompt']}```")
    return texts


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise SystemExit(f"--data: there is no {file}; name a folder that has it")
    with file.open() as lines:
        yield from map(json.loads, lines)


def _chat(tokenizer: Any, text: str) -> tuple[int, ...]:
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
    )
    return tuple(encoded["input_ids"])

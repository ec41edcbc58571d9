"""Held-out evaluation of a target, written before training and not adapted to it.

Templates, topics, lengths and library modules used here do not occur in training.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import kendalltau
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.prompts.corpus import Corpus
from benchmarks.prompts.messages import chat_text, user_message
from benchmarks.prompts.tasks import (
    OTHER_KINDS,
    STATED_LENGTH_KINDS,
    Source,
    Task,
    ends_at_stated_length,
    make_task,
)
from policies.scheduling.rank_answers import Values, read_lengths, read_ranks
from policies.scheduling.rank_prompts import FORMS, Message

MAX_NEW_TOKENS = 640
_MAX_RANKING_TOKENS = 120
_GENERATION_BATCH = 48


@dataclass(frozen=True)
class Score:
    name: str
    value: float
    samples: int


def held_out_tasks(corpus: Corpus, kind: str, count: int, seed: int = 1) -> list[Task]:
    """`count` held-out tasks of one kind; `corpus` is the held-out split."""
    rng = random.Random(f"held-out/{kind}/{seed}")
    source = Source(corpus, held_out=True)
    return [make_task(source, rng, kind) for _ in range(count)]


def generate_greedy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    conversations: Sequence[list[Message]],
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[list[int]]:
    """The greedy answer to each conversation, including its end token if there is one."""
    texts = [chat_text(messages) for messages in conversations]
    answers: list[list[int]] = []
    for start in range(0, len(texts), _GENERATION_BATCH):
        prompts = tokenizer(
            texts[start : start + _GENERATION_BATCH],
            return_tensors="pt",
            padding=True,
            padding_side="left",
        )
        with torch.inference_mode():
            output = model.generate(
                input_ids=prompts["input_ids"],
                attention_mask=prompts["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
        for row in output[:, prompts["input_ids"].shape[1] :].tolist():
            ended = tokenizer.eos_token_id in row
            answers.append(row[: row.index(tokenizer.eos_token_id) + 1] if ended else row)
    return answers


def task_scores(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    per_kind: int,
    kinds: Sequence[str] = STATED_LENGTH_KINDS + OTHER_KINDS,
) -> list[Score]:
    """The share of held-out tasks answered correctly, per kind.

    Stated lengths: the answer ends correctly at the stated length. Code and docs have no single
    correct answer, so the share of answers that end by themselves counts. Others: the answer is
    exactly right.
    """
    tasks = [task for kind in kinds for task in held_out_tasks(corpus, kind, per_kind)]
    answers = generate_greedy(model, tokenizer, [user_message(task) for task in tasks])
    done: dict[str, list[bool]] = {kind: [] for kind in kinds}
    for task, answer in zip(tasks, answers, strict=True):
        done[task.kind].append(_is_right(task, answer, tokenizer))
    return [_mean(f"task/{kind}", right) for kind, right in done.items()]


def _mean(name: str, values: Sequence[float]) -> Score:
    return Score(name, sum(values) / len(values), len(values))


def _is_right(task: Task, answer: list[int], tokenizer: PreTrainedTokenizerFast) -> bool:
    if not answer or answer[-1] != tokenizer.eos_token_id:
        return False
    text: str = tokenizer.decode(answer[:-1])
    if task.stated_length is not None:
        return ends_at_stated_length(task, text)
    if task.kind in ("code", "docs"):
        return True
    return text == task.answer


def ranking_scores(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    batches: int,
    batch_size: int = 6,
) -> list[Score]:
    """Mean Kendall τ-b of each ranking form against the lengths of the target's greedy answers.

    `length_only` and `rank_only` show a whole batch in one prompt; `length_only_alone` has a prompt
    for each request and orders by the answers.
    """
    scores = []
    for label, kinds in (("stated", STATED_LENGTH_KINDS), ("unstated", OTHER_KINDS)):
        rng = random.Random(f"held-out/ranking/{label}")
        source = Source(corpus, held_out=True)
        tasks = [make_task(source, rng, rng.choice(kinds)) for _ in range(batches * batch_size)]
        answers = generate_greedy(model, tokenizer, [user_message(task) for task in tasks])
        groups = [range(i, i + batch_size) for i in range(0, len(tasks), batch_size)]
        prompts = [[tasks[i].prompt for i in group] for group in groups]
        truths = [[len(answers[i]) for i in group] for group in groups]
        predicted = {
            "length_only": _answered_values(model, tokenizer, "length_only", prompts),
            "rank_only": _answered_values(model, tokenizer, "rank_only", prompts),
            "prefill_only": [_position_scores(model, tokenizer, prompt) for prompt in prompts],
        }
        alone = _answered_values(model, tokenizer, "length_only", [[t.prompt] for t in tasks])
        predicted["length_only_alone"] = [[alone[i][0] for i in group] for group in groups]
        for form, values in predicted.items():
            taus = [tau(one, truth) for one, truth in zip(values, truths, strict=True)]
            scores.append(_mean(f"ranking/{form}/{label}", taus))
    return scores


def _answered_values(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    form: str,
    prompts: Sequence[list[str]],
) -> list[list[float]]:
    """The model's answer for every request of each prompt."""
    conversations = [FORMS[form](prompt) for prompt in prompts]
    replies = generate_greedy(model, tokenizer, conversations, _MAX_RANKING_TOKENS)
    texts = [tokenizer.decode(reply, skip_special_tokens=True) for reply in replies]
    return [_values(form, text, len(prompt)) for text, prompt in zip(texts, prompts, strict=True)]


def _values(form: str, text: str, batch_size: int) -> list[float]:
    """The values in an answer, by request."""
    read = read_lengths if form == "length_only" else read_ranks
    return filled(read(text, batch_size))


def filled(values: Values) -> list[float]:
    """The median of the values where one is missing."""
    stated = sorted(value for value in values if value is not None)
    middle = stated[len(stated) // 2] if stated else 0.0
    return [middle if value is None else value for value in values]


def _position_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, requests: list[str]
) -> list[float]:
    """PrefillOnly: the negated logit of each position's digit, so that larger means longer."""
    prompt = tokenizer(chat_text(FORMS["prefill_only"](requests)), return_tensors="pt")
    with torch.inference_mode():
        logits = model(input_ids=prompt["input_ids"]).logits[0, -1]
    digits = [tokenizer.convert_tokens_to_ids(str(position)) for position in range(len(requests))]
    return [-float(logits[digit]) for digit in digits]


def tau(predicted: Sequence[float], truth: Sequence[int]) -> float:
    """Kendall's τ-b; 0 for a constant prediction, for which it is undefined."""
    found = float(kendalltau(predicted, truth).statistic)
    return 0.0 if found != found else found

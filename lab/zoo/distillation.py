"""Distillation of the drafters: each learns the target's probabilities on its own domain."""

import random

import torch
from torch.nn.functional import log_softmax
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.prompts.corpus import Corpus
from benchmarks.prompts.messages import chat_text, user_message
from benchmarks.prompts.tasks import Source, make_task
from engine.learning.training import fast_products
from lab.zoo.batches import Sample, Sampler
from lab.zoo.recipe import Recipe
from lab.zoo.training import (
    BATCH_TOKENS,
    ROW_TOKENS,
    Optimizer,
    next_token_logits,
    trainable,
    weighted_mean,
)

_GENERATION_BATCH = 64
_MAX_ANSWER_TOKENS = 256
_PROMPT_WEIGHT = 0.1


def answer_tasks(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, batches: int
) -> dict[str, list[Sample]]:
    """Conversations with the target's own answers, by kind of task; half greedy, half sampled.

    Drafters are trained on these and on the corpus, because in service they draft the target's
    text.
    """
    rng = random.Random("answers")
    torch.manual_seed(0)
    source = Source(corpus)
    answered: dict[str, list[Sample]] = {}
    for index in tqdm(range(batches), desc="target's own answers"):
        tasks = [make_task(source, rng) for _ in range(_GENERATION_BATCH)]
        texts = [chat_text(user_message(task)) for task in tasks]
        prompts = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
        with torch.inference_mode():
            output = target.generate(
                input_ids=prompts["input_ids"],
                attention_mask=prompts["attention_mask"],
                max_new_tokens=_MAX_ANSWER_TOKENS,
                do_sample=index % 2 == 1,
                top_k=0,
            )
        answers = output[:, prompts["input_ids"].shape[1] :].tolist()
        for task, text, answer in zip(tasks, texts, answers, strict=True):
            if tokenizer.eos_token_id in answer:
                answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
            prompt = tokenizer(text)["input_ids"]
            weights = [_PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
            answered.setdefault(task.kind, []).append(Sample(prompt + answer, weights))
    return answered


def distil(recipe: Recipe, target: LlamaForCausalLM, sampler: Sampler) -> LlamaForCausalLM:
    """Trains a drafter to minimise KL(target || drafter) on its mix."""
    torch.manual_seed(0)
    drafter = trainable(LlamaForCausalLM(recipe.config()))
    optimizer = Optimizer(drafter.named_parameters(), recipe.ends)

    def loss_of(
        tokens: torch.Tensor,
        positions: torch.Tensor,
        weights: torch.Tensor,
        probabilities: torch.Tensor,
    ) -> torch.Tensor:
        # Cross-entropy against the target's probabilities, which equals the KL up to a constant.
        log_drafter = log_softmax(next_token_logits(drafter, tokens, positions), dim=-1)
        return weighted_mean(-(probabilities * log_drafter).sum(-1), weights[:, 1:])

    def probabilities_of(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return next_token_logits(target, tokens, positions).softmax(-1)

    compiled_loss = torch.compile(loss_of, dynamic=False)
    compiled_probabilities = torch.compile(probabilities_of, dynamic=False)
    progress = tqdm(range(recipe.steps), desc=recipe.name)
    for step in progress:
        batch = sampler.batch(step, BATCH_TOKENS // ROW_TOKENS, ROW_TOKENS)
        tokens, positions = torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions)
        with fast_products():
            with torch.no_grad():
                probabilities = compiled_probabilities(tokens, positions)
            loss = compiled_loss(tokens, positions, torch.from_numpy(batch.weights), probabilities)
        loss.backward()
        optimizer.step(step)
        progress.set_postfix(loss=f"{loss.item():.3f}")
    return drafter

"""The shipped weights: stock transformers load them; they agree, stay small, and count."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.zoo import MODELS, TARGET, model_path
from cluster.zoo.batches import user_message
from cluster.zoo.chat import CONTEXT, VOCAB_SIZE
from cluster.zoo.corpus import load_corpus
from cluster.zoo.heldout import generate_greedy, held_out_tasks
from cluster.zoo.paths import MODELS_DIR
from cluster.zoo.tasks import ends_at_stated_length

MAX_BYTES = 25_000_000


def test_the_zoo_fits_the_repository() -> None:
    sizes = [file.stat().st_size for file in MODELS_DIR.rglob("*") if file.is_file()]
    assert 0 < sum(sizes) <= MAX_BYTES


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'huge'.*target"):
        model_path("huge")


@pytest.mark.parametrize("name", MODELS)
def test_models_load_and_agree_on_vocabulary_and_context(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path(name))
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == VOCAB_SIZE
    assert model.config.max_position_embeddings == CONTEXT
    assert model(torch.arange(CONTEXT)[None] % VOCAB_SIZE).logits.isfinite().all()


def test_target_counts_to_lengths_that_it_never_saw() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    target = AutoModelForCausalLM.from_pretrained(model_path(TARGET), dtype=torch.float32)
    tasks = held_out_tasks(load_corpus(held_out=True), "count", count=20, seed=2)
    answers = generate_greedy(target, tokenizer, [user_message(task) for task in tasks], 280)
    right = [
        answer[-1] == tokenizer.eos_token_id
        and ends_at_stated_length(task, tokenizer.decode(answer[:-1]))
        for task, answer in zip(tasks, answers, strict=True)
    ]
    assert sum(right) >= 0.8 * len(tasks)

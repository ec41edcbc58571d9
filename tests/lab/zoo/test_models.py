"""The shipped weights: stock transformers load them; they agree, end and rank."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from benchmarks.prompts.corpus import load_corpus
from cluster.built_in_models import MODELS, TARGET, model_path
from lab.zoo.chat import CONTEXT, VOCAB_SIZE
from lab.zoo.heldout import ranking_scores, task_scores


@pytest.mark.parametrize("name", MODELS)
def test_models_load_and_agree_on_vocabulary_and_context(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path(name))
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == VOCAB_SIZE
    assert model.config.max_position_embeddings == CONTEXT
    assert model(torch.arange(CONTEXT)[None] % VOCAB_SIZE).logits.isfinite().all()


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(model_path(TARGET), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(model_path(TARGET))


def test_target_ends_at_lengths_that_it_never_saw(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    corpus = load_corpus(held_out=True)
    for score in task_scores(target, tokenizer, corpus, 12, ("count", "list", "table")):
        assert score.value >= 0.8, score.name


def test_target_orders_six_requests_by_the_lengths_that_they_state(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    scores = ranking_scores(target, tokenizer, load_corpus(held_out=True), batches=3)
    by_name = {score.name: score.value for score in scores}
    assert by_name["ranking/length_only/stated"] >= 0.5

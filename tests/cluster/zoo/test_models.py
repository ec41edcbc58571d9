"""The shipped weights: stock transformers load them; they agree, stay small, end and rank."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from cluster.zoo import MODELS, TARGET, model_path
from cluster.zoo.chat import CONTEXT, VOCAB_SIZE
from cluster.zoo.corpus import load_corpus
from cluster.zoo.heldout import ranking_scores, task_scores
from cluster.zoo.paths import HEADS, MODELS_DIR

MAX_BYTES = 25_000_000


@pytest.mark.parametrize("names", [MODELS, HEADS])
def test_the_zoo_and_its_heads_fit_the_repository(names: tuple[str, ...]) -> None:
    folders = [model_path(name) for name in names]
    sizes = [file.stat().st_size for folder in folders for file in folder.iterdir()]
    assert 0 < sum(sizes) <= MAX_BYTES
    assert {folder.name for folder in MODELS_DIR.iterdir()} == {*MODELS, *HEADS}


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

"""The zoo's tokenizer encodes any text, and its chat template is the one that training saw."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.prompts.messages import chat_text
from cluster.built_in_models import MODELS, TARGET, model_path
from policies.scheduling.rank_prompts import FORMS

TOKENIZER: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(model_path(TARGET))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_text_survives_the_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


@pytest.mark.parametrize("name", MODELS)
def test_every_model_carries_the_same_tokenizer(name: str) -> None:
    own = (model_path(name) / "tokenizer.json").read_bytes()
    assert own == (model_path(TARGET) / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_chat_template_renders_what_training_saw(form: str) -> None:
    messages = FORMS[form](["Count to 9.", "What is 1 + 2?"])
    rendered = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == chat_text(messages)
    special = [i for i in TOKENIZER(rendered)["input_ids"] if i in TOKENIZER.all_special_ids]
    turns = ["<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
    assert TOKENIZER.convert_ids_to_tokens(special) == turns

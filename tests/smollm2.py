"""The default model, which `make test` fetches."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from cluster.built_in_models import SMOLLM2, has_smollm2, smollm2_path
from engine.tokenizer import load_tokenizer

needs_smollm2 = pytest.mark.skipif(
    not has_smollm2(), reason=f"{SMOLLM2} is not on this machine: `make model` says why"
)


@cache
def eager() -> PreTrainedModel:
    """The stock model with which streams are compared."""
    return AutoModelForCausalLM.from_pretrained(
        smollm2_path(), dtype=torch.float32, attn_implementation="eager"
    ).eval()


def chats(questions: Sequence[str]) -> list[list[int]]:
    """As the chat template writes them."""
    tokenizer = load_tokenizer(smollm2_path())
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in questions
    ]

"""The default model, which `make test` fetches."""

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from cluster.built_in_models import SMOLLM2, has_smollm2, smollm2_path

needs_smollm2 = pytest.mark.skipif(
    not has_smollm2(), reason=f"{SMOLLM2} is not on this machine: `make model` says why"
)


def eager() -> PreTrainedModel:
    """The stock model with which streams are compared."""
    return AutoModelForCausalLM.from_pretrained(
        smollm2_path(), dtype=torch.float32, attn_implementation="eager"
    ).eval()

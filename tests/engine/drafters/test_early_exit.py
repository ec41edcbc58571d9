"""The target's first layers as its drafter: what they compute, and that outputs stay the same."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.drafters.early_exit import load_early_exit
from engine.drafters.model import ModelDrafter, make_runner
from engine.errors import IncompatibleDrafter
from engine.generate import generate
from engine.model import PackedModel
from engine.protocol import Commit, Drafter
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, llama
from tests.engine.drafters.orders import Stream

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=5)
PROMPTS = [[5, 6, 7], [9] * 30, [3]]


def nearly_idle(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The layers from `layers` on add little, so that an exit before them often agrees."""
    with torch.no_grad():
        for layer in model.model.layers[layers:]:
            layer.self_attn.o_proj.weight *= 0.05
            layer.mlp.down_proj.weight *= 0.05
    return model


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return nearly_idle(llama(layers=4), 2)


@pytest.fixture(scope="module")
def checkpoint(target: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    target.save_pretrained(path)
    return path


def load(checkpoint: Path, layers: int) -> Drafter:
    return load_early_exit(
        "exit",
        checkpoint,
        dtype=torch.float32,
        device="cpu",
        kv_tokens=1024,
        target_vocab_size=VOCAB,
        layers=layers,
    ).drafter


@pytest.mark.parametrize("layers", [1, 3])
def test_it_drafts_what_the_target_without_its_last_layers_would(
    checkpoint: Path, target: PreTrainedModel, layers: int
) -> None:
    short = copy.deepcopy(target)
    short.model.layers = short.model.layers[:layers]
    short.config.num_hidden_layers = layers
    expected = ModelDrafter("short", make_runner(short, kv_tokens=1024), target_vocab_size=VOCAB)
    drafter = load(checkpoint, layers)
    for prompt in PROMPTS:
        drafts = [
            Stream("a", prompt, SAMPLED, 5).draft(one, depth=4, width=3)
            for one in (drafter, expected)
        ]
        assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
        for one in (drafter, expected):
            one.forget(["a"])


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_outputs_equal_the_references_and_drafts_are_accepted(
    checkpoint: Path, target: PreTrainedModel, params: SamplingParams, width: int
) -> None:
    verifier = NativeVerifier(
        PackedModel.load(checkpoint, dtype=torch.float32, device="cpu", kv_tokens=2048)
    )
    streams: dict[str, list[int]] = {}
    commits = 0
    for commit in generate(
        verifier, PROMPTS, params, drafter=load(checkpoint, 2), depth=4, width=width
    ):
        assert isinstance(commit, Commit)
        streams.setdefault(commit.request, []).extend(commit.token_ids)
        commits += 1
    eager = copy.deepcopy(target)
    eager.set_attn_implementation("eager")
    assert streams == {
        str(number): reference.generate(eager, prompt, params, params.seed or 0)
        for number, prompt in enumerate(PROMPTS)
    }
    assert commits < 0.6 * len(PROMPTS) * params.max_tokens


@pytest.mark.parametrize("layers", [0, 4])
def test_a_number_of_layers_that_is_no_exit_is_refused(checkpoint: Path, layers: int) -> None:
    with pytest.raises(IncompatibleDrafter, match=f"layers: {layers} of the target's 4"):
        load(checkpoint, layers)

"""A model drafter with another tokenizer proposes what it would with the target's."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.built_in_models import model_path
from cluster.vocabularies import shared_tokens
from engine.drafters.loading import load_model_drafter
from engine.errors import IncompatibleDrafter
from engine.protocol import Drafter
from engine.sampling.params import SamplingParams
from tests.engine.drafters.orders import Stream, assert_equal, token_paths
from tests.other_tokenizer import write_renamed

TARGET = model_path("target")
PROMPT = list(range(40, 90))
load = partial(
    load_model_drafter,
    dtype=torch.float32,
    device="cpu",
    kv_tokens=2048,
    target_vocab_size=2048,
    target=TARGET,
)


def small(checkpoint: Path) -> Drafter:
    return load("small", checkpoint).drafter


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1, top_p=0.9),
        SamplingParams(temperature=0.8, repetition_penalty=1.2, logit_bias={100: 3.0}),
    ],
)
def test_a_model_under_other_ids_drafts_as_it_does_under_the_targets(
    params: SamplingParams, width: int, untied: bool, tmp_path: Path
) -> None:
    """It shares all tokens, so it is the same model."""
    renamed = write_renamed("small", tmp_path / "renamed")
    if untied:
        _untie(renamed)
    one, other = small(model_path("small")), small(renamed)
    streams = Stream("a", PROMPT, params, seed=3), Stream("a", PROMPT, params, seed=3)
    for committed in ([], [7, 99, 2047], [3]):
        for stream in streams:
            stream.committed.extend(committed)
        first, second = streams[0].draft(one, 4, width), streams[1].draft(other, 4, width)
        assert len(first) >= 4
        assert_equal(second, first)


def _untie(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))


def test_only_shared_tokens_are_proposed_whatever_was_committed(tmp_path: Path) -> None:
    renamed = write_renamed("small", tmp_path / "renamed", kept=0.5)
    shared = shared_tokens(TARGET, renamed)
    assert shared is not None
    drafter, rng = small(renamed), np.random.default_rng(1)
    stream = Stream("a", PROMPT, SamplingParams(temperature=1.5), seed=1)
    proposed = set[int]()
    for _ in range(20):
        tree = stream.draft(drafter, 3, 3)
        proposed |= {token for path in token_paths(tree) for token in path}
        stream.committed.extend(rng.integers(2048, size=2).tolist())
    assert len(proposed) > 20
    assert proposed <= shared.ids.keys()


def test_a_drafter_that_shares_too_little_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    renamed = write_renamed("small", tmp_path / "renamed", kept=0.02)
    with pytest.raises(IncompatibleDrafter, match=r"'small': model: .* shares 45 of .* 2,048"):
        load("small", renamed)

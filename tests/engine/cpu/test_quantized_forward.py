"""A forward over quantized weights: near the float model's, and a row depends on no other row."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.checkpoint_files import Quantize
from engine.attention.packed import PackedPlan
from engine.cpu.quantized_loading import quantized_linears
from engine.hidden_states import HiddenStates
from engine.model import PackedModel, Segment
from policies.tree import DraftTree
from tests.engine.attention.batches import GreedyPlan
from tests.engine.families import VOCAB, build

FAMILIES = {"llama": {}, "qwen2": {}, "qwen3": {}, "mistral": {"sliding_window": 9}}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}


def model_of(family: str, quantize: Quantize) -> PackedModel:
    from transformers import AutoConfig

    config = AutoConfig.for_model(
        family, vocab_size=VOCAB, num_hidden_layers=3, num_key_value_heads=2,
        max_position_embeddings=256, initializer_range=0.2, eos_token_id=1,
        pad_token_id=None, bos_token_id=None, **SIZES, **FAMILIES[family],
    )  # fmt: skip
    stock = build(config)
    return PackedModel(
        stock, kv_tokens=2048, quantized=quantized_linears(stock, Path("tiny"), quantize)
    )


def logits(model: PackedModel, prompts: list[list[int]], chunk: int = 999) -> torch.Tensor:
    """After all tokens of all prompts, which go through the model together, `chunk` at a time."""
    for name in range(len(prompts)):
        model.kv.open(str(name), [])
    parts: dict[int, list[torch.Tensor]] = {name: [] for name in range(len(prompts))}
    for first in range(0, max(map(len, prompts)), chunk):
        segments, names = [], []
        for name, prompt in enumerate(prompts):
            tokens = prompt[first : first + chunk]
            if tokens:
                rows = np.arange(len(tokens), dtype=np.int32)
                names.append((name, tokens))
                segments.append(
                    Segment(str(name), np.array(tokens, np.int32), first + rows, None, rows)
                )
        rows_of = model.forward(segments).split([len(tokens) for _, tokens in names])
        for (name, tokens), own in zip(names, rows_of, strict=True):
            parts[name].append(own.clone())
            model.kv.commit(str(name), range(len(tokens)), tokens)
    for name in range(len(prompts)):
        model.kv.release(str(name))
    return torch.cat([torch.cat(parts[name]) for name in range(len(prompts))])


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(2, VOCAB, length).tolist() for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_stay_near_their_float_models(family: str) -> None:
    given = prompts(7, 1, 40, 90)
    floats = logits(model_of(family, "none"), given)
    spread = floats.amax() - floats.amin()
    errors = {
        bits: float((logits(model_of(family, bits), given) - floats).abs().mean() / spread)
        for bits in ("int8", "int4")
    }
    assert errors["int8"] < 0.01  # without a window, a bias or a norm it is above 0.05
    assert errors["int8"] < errors["int4"] < 0.1


def test_hidden_states_are_those_that_enter_the_layers() -> None:
    (prompt,) = prompts(30)
    rows = np.arange(len(prompt), dtype=np.int32)
    segment = Segment("one", np.array(prompt, np.int32), rows, None, rows[-1:])
    taken = []
    for quantize in ("none", "int8"):
        model, states = model_of("llama", quantize), HiddenStates([0, 2])
        model.kv.open("one", [])
        model.forward([segment], states)
        taken.append(states.rows([0, 2], range(len(prompt))))
    floats, quantized = taken
    assert np.array_equal(quantized[:, :64], floats[:, :64]), "embeddings stay floats"
    assert np.abs(quantized - floats).mean() < 0.06 * np.abs(floats).mean()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_rows_bits_depend_on_its_request_alone(quantize: Quantize) -> None:
    model = model_of("qwen3", quantize)
    given = prompts(3, 90, 1, 140)
    alone = torch.cat([logits(model, [prompt]) for prompt in given])
    torch.testing.assert_close(logits(model, given), alone, rtol=0, atol=0)
    for chunk in (1, 4, 7, 45):  # drafts of other lengths, prompts in other chunks
        torch.testing.assert_close(logits(model, given, chunk), alone, rtol=0, atol=0)


def test_a_step_that_finds_no_memory_is_an_error_and_holds_up_no_thread() -> None:
    model = model_of("llama", "int8")
    (prompt,) = prompts(9)
    before = logits(model, [prompt])
    model.plan = GreedyPlan
    with pytest.raises(MemoryError):
        logits(model, [prompt])
    model.kv.release("0")
    model.plan = PackedPlan
    torch.testing.assert_close(logits(model, [prompt]), before, rtol=0, atol=0)


def test_a_nodes_bits_depend_on_its_ancestors_alone() -> None:
    """In a draft tree whose branches lie between each other in the pool."""
    model = model_of("llama", "int8")
    (prompt,) = prompts(45)
    parents, tokens = [-1, -1, 0, 1, 0, 2, 3, 5], [11, 12, 13, 14, 15, 16, 17, 18]
    tree = DraftTree.build(tokens, parents, [0.5] * len(tokens))
    model.kv.open("tree", [])
    rows = np.arange(len(prompt), dtype=np.int32)
    model.forward([Segment("tree", np.array(prompt, np.int32), rows, None, rows[:0])])
    model.kv.commit("tree", range(len(prompt)), prompt)
    nodes = np.arange(len(tokens), dtype=np.int32)
    positions = (len(prompt) + tree.depth - 1).astype(np.int32)
    of_tree = model.forward(
        [Segment("tree", np.array(tokens, np.int32), positions, tree.ancestor_mask(), nodes)]
    )
    for node in nodes:
        path = [tokens[step] for step in tree.path(int(node))]
        alone = logits(model, [[*prompt, *path]])[-1]
        torch.testing.assert_close(of_tree[node], alone, rtol=0, atol=0)

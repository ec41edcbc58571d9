"""The packed forward says what the stock model says of each request alone, from scratch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.checkpoint import load_stock
from engine.cpu.prepack import can_pack
from engine.drafters.loading import load_model_drafter
from engine.errors import IncompatibleDrafter, IncompleteCheckpoint, OutOfBlocks, UnsupportedModel
from engine.model import PackedModel, Segment
from policies.tree import ROOT, DraftTree
from tests.checkpoints import llama
from tests.engine.families import SUPPORTED, build
from tests.engine.kv import integrity
from tests.engine.random_rounds import from_scratch, largest_error


def chain(name: str, tokens: list[int], first: int = 0) -> Segment:
    count = len(tokens)
    positions = np.arange(first, first + count, dtype=np.int32)
    return Segment(name, np.array(tokens, np.int32), positions, None, np.arange(count))


@pytest.mark.parametrize("family", SUPPORTED)
def test_family_equals_its_stock_model(family: str) -> None:
    model = PackedModel(build(SUPPORTED[family]), kv_tokens=2048)
    assert not any(can_pack(module) for module in model.hf_model.modules()), "prepacked layers"
    assert largest_error(model, model.hf_model, np.random.default_rng(1)) < 1e-4


@pytest.fixture(scope="module")
def packed() -> PackedModel:
    return PackedModel(llama(), kv_tokens=512)


def test_a_window_counts_positions_and_not_rows() -> None:
    """A branch longer than the window, whose rows lie after those of its siblings."""
    model = PackedModel(build(SUPPORTED["mistral"]), kv_tokens=64)
    siblings, branch = [20, 21, 22, 23, 24, 25], list(range(30, 42))
    parents = [ROOT] * (len(siblings) + 1) + list(range(len(siblings), 17))
    tree = DraftTree.build(siblings + branch, parents, [0.1] * len(parents))
    model.kv.open("deep", [])
    positions, wanted = (tree.depth - 1).astype(np.int32), np.array([len(tree) - 1])
    segment = Segment("deep", tree.tokens, positions, tree.ancestor_mask(), wanted)
    logits = model.forward([segment])[0]
    torch.testing.assert_close(logits, from_scratch(model.hf_model, branch), atol=1e-4, rtol=0)


def test_only_wanted_rows_come_back_in_order(packed: PackedModel) -> None:
    for name in ("a", "b"):
        packed.kv.open(name, [])
    wanted = replace(chain("a", [3, 4, 5]), logits=np.array([2, 0], np.int32))
    silent = replace(chain("b", [6, 7]), logits=np.array([], np.int32))
    logits = packed.forward([silent, wanted])
    packed.kv.release("a")
    packed.kv.release("b")
    expected = [from_scratch(packed.hf_model, tokens) for tokens in ([3, 4, 5], [3])]
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-4, rtol=0)


def test_out_of_blocks_leaves_every_request_as_it_was(packed: PackedModel) -> None:
    for name in ("small", "large"):
        packed.kv.open(name, [])
    free = packed.kv.free_blocks + packed.kv.cached_blocks
    with pytest.raises(OutOfBlocks):
        packed.forward([chain("small", [1, 2]), chain("large", [3] * 520)])
    assert packed.kv.tail("small") == packed.kv.tail("large") == 0
    assert packed.kv.free_blocks + packed.kv.cached_blocks == free
    logits = packed.forward([chain("small", [1, 2])])[-1]
    torch.testing.assert_close(logits, from_scratch(packed.hf_model, [1, 2]), atol=1e-4, rtol=0)
    packed.kv.release("small")
    packed.kv.release("large")
    integrity.check(packed.kv)


def test_checkpoint_on_disk_serves_with_its_own_facts(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    model = PackedModel.load(tmp_path, dtype=torch.bfloat16, device="cpu", kv_tokens=100)
    assert (model.vocab_size, model.max_context, model.stop_token_ids) == (97, 256, (1,))
    assert model.kv.shape.dtype == torch.bfloat16
    assert model.kv.capacity == 112  # whole blocks of 16


def test_a_model_whose_packed_logits_are_wrong_is_refused() -> None:
    """The last line of defence at load: here the forward sees other weights than stock does."""
    model = build(SUPPORTED["mixtral"])
    attention = model.model.layers[1].self_attn

    def swap_scale(*_: object) -> None:
        packed = model.config._attn_implementation != "eager"
        attention.scaling = 3.0 if packed else 8**-0.5

    attention.register_forward_pre_hook(swap_scale)
    with pytest.raises(UnsupportedModel, match="differ from the stock model's by"):
        PackedModel(model, kv_tokens=64)


def test_half_precision_on_a_cpu_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"float32 or bfloat16, not in torch\.float16"):
        PackedModel(llama().half(), kv_tokens=64)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """transformers would fill them with random numbers, and the answers be nonsense."""
    model = llama()
    weights = model.state_dict()
    lacking = "model.layers.1.mlp.up_proj.weight"
    del weights[lacking]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(IncompleteCheckpoint, match=rf"lacks 1 of .* \({lacking}\)"):
        load_stock(tmp_path, torch.float32)
    with pytest.raises(IncompatibleDrafter, match=lacking):
        load_model_drafter(
            "small",
            tmp_path,
            dtype=torch.float32,
            device="cpu",
            kv_tokens=64,
            target_vocab_size=model.config.vocab_size,
            target=tmp_path,
        )

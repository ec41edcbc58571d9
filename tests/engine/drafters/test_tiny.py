"""The tiny runner's logits and trees equal torch's, and its pages are neither lost nor mixed up."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from engine.drafters import tiny_steps
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.drafters.tiny import TinyRunner
from engine.drafters.tiny_kernels import PAGE
from engine.drafters.tiny_pages import PagedRequest, PagePool
from engine.drafters.tiny_weights import is_tiny, pack
from engine.errors import OutOfBlocks
from engine.model import PackedModel
from engine.protocol import Draft, DraftStep
from engine.sampling.params import SamplingParams
from policies.tree import DraftTree
from tests.engine.drafters.orders import Stream, token_paths

CONTEXT = 512
PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.02),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.5),
)


def tiny_llama(**changes: object) -> LlamaForCausalLM:
    """64×2, next-token distributions neither flat nor certain; sizes that are no tile multiples."""
    torch.manual_seed(0)
    settings = {
        "hidden_size": 64,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 203,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


SHAPES: dict[str, dict[str, object]] = {
    "grouped": {},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 12},
    "one kv head": {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "tied": {"tie_word_embeddings": True, "vocab_size": 64},
    "wide heads": {"head_dim": 40, "hidden_size": 36},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_equal_eager_torchs(changes: dict[str, object]) -> None:
    """In chunks that end within pages, for two requests whose pages interleave."""
    model = tiny_llama(**changes)
    assert is_tiny(model)
    weights = pack(model)
    config = model.config
    pool = PagePool(12, config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
    rng = np.random.default_rng(0)
    texts = [rng.integers(model.vocab_size, size=size, dtype=np.int32) for size in (150, 97)]
    requests = [pool.add(), pool.add()]
    got: list[list[NDArray[np.float32]]] = [[], []]
    for end in (1, 60, 70, 97, 150):
        chunks = [text[one.length : end] for one, text in zip(requests, texts, strict=True)]
        pool.reserve(
            requests, [one.length + len(c) for one, c in zip(requests, chunks, strict=True)]
        )
        counts = np.array([len(chunk) for chunk in chunks])
        logits = tiny_steps.extend(
            *weights,
            pool.kv,
            pool.tables,
            np.array([one.table_row for one in requests]),
            np.array([one.length for one in requests]),
            np.concatenate(chunks),
            counts,
            np.arange(counts.sum()),
        )
        parts = np.split(logits[:, : model.vocab_size], [counts[0]])
        for one, rows, part in zip(requests, got, parts, strict=True):
            rows.append(part)
            one.length += len(part)
    for text, rows in zip(texts, got, strict=True):
        with torch.inference_mode():
            expected = model(torch.from_numpy(text)[None].long()).logits[0].numpy()
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-4)


def stop_some(step: DraftStep) -> list[bool]:
    """A policy that drafts deeper the higher the path confidence is."""
    return [len(path) == 0 or path[0] > 0.3**step.depth for path in step.frontier]


@pytest.mark.parametrize("shape", ["grouped", "llama3"])
def test_trees_equal_those_of_the_packed_runner(shape: str) -> None:
    """Over rounds of requests of different length, depth, width and parameters."""
    model = tiny_llama(**SHAPES[shape])
    tiny = TinyRunner(model, kv_tokens=4096)
    packed = PackedRunner(PackedModel(model, kv_tokens=4096))
    drafters = [
        ModelDrafter("drafter", runner, target_vocab_size=203, chunk=100)
        for runner in (tiny, packed)
    ]
    # Not seed 0: there two candidates are within 1e-5, which rounding decides.
    rng = np.random.default_rng(1)
    streams = [
        Stream(str(seed), rng.integers(203, size=int(size)).tolist(), PARAMS[seed % 5], seed)
        for seed, size in enumerate(rng.integers(1, 200, size=10))
    ]
    nodes = 0
    for _ in range(8):
        batch = [stream for stream in streams if rng.random() < 0.8]
        orders = [s.order(int(rng.integers(0, 7)), int(rng.integers(1, 6))) for s in batch]
        compiled, eager = (drafter.draft(orders, stop_some) for drafter in drafters)
        for stream, ours, theirs in zip(batch, compiled, eager, strict=True):
            assert isinstance(ours, Draft)
            assert isinstance(theirs, Draft)
            assert_equal(ours.tree, theirs.tree)
            nodes += len(ours.tree)
            path = ours.tree.path(len(ours.tree) // 2) if len(ours.tree) else []
            stream.committed.extend([*ours.tree.tokens[path].tolist(), int(rng.integers(203))])
    assert nodes > 200


def assert_equal(ours: DraftTree, theirs: DraftTree) -> None:
    assert token_paths(ours) == token_paths(theirs)
    assert ours.parents.tolist() == theirs.parents.tolist()
    np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=1e-4)


def test_only_models_that_the_loops_compute_exactly_are_tiny() -> None:
    length_dependent = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    assert not is_tiny(tiny_llama(rope_parameters=length_dependent))
    assert not is_tiny(tiny_llama(attention_bias=True))
    assert not is_tiny(tiny_llama(mlp_bias=True))
    assert not is_tiny(tiny_llama(hidden_act="gelu"))
    assert not is_tiny(tiny_llama(head_dim=18))
    assert not is_tiny(tiny_llama().bfloat16())
    assert not is_tiny(tiny_llama(hidden_size=512, intermediate_size=2048, vocab_size=4096))
    config = MistralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=50,
    )
    assert not is_tiny(MistralForCausalLM(config))


def rows_of(pool: PagePool, one: PagedRequest, count: int) -> NDArray[np.float32]:
    """The first number of each row, addressed as a kernel does."""
    at = np.arange(count)
    pages = pool.tables[one.table_row, at // PAGE]
    return pool.kv[0, 0, pages, 0, 0, at % PAGE]


def write_rows(pool: PagePool, one: PagedRequest, values: list[float]) -> None:
    at = np.arange(len(values))
    pages = pool.tables[one.table_row, at // PAGE]
    for rows in pool.kv:
        rows[:, pages, :, :, at % PAGE] = np.array(values, np.float32)[:, None, None, None]


def test_pages_keep_their_rows_and_are_freed() -> None:
    pool = PagePool(pages=7, layers=2, kv_heads=1, head_dim=4)
    rng = np.random.default_rng(0)
    held: dict[int, tuple[PagedRequest, list[float]]] = {}
    refused = 0
    for number in range(400):
        if len(held) < 5:
            held[number] = (pool.add(), [])
        key = int(rng.choice(list(held)))
        one, values = held[key]
        match rng.integers(4):
            case 0:
                more = rng.random(int(rng.integers(1, 150)), np.float32).tolist()
                try:
                    pool.reserve([one], [len(values) + len(more)])
                except OutOfBlocks:
                    refused += 1
                else:
                    values += more
                    write_rows(pool, one, values)
            case 1 if values:
                source = np.sort(rng.choice(len(values), min(5, len(values)), replace=False))
                target = range(len(source))  # at or below the sources, as in a commit
                pool.move(one, source.tolist(), target)
                values[: len(source)] = [values[row] for row in source]
            case 2:
                del values[int(rng.integers(len(values) + 1)) :]
                pool.shrink(one, len(values))
            case 3:
                pool.remove(one)
                del held[key]
        pages = sum(-(-len(values) // PAGE) for _, values in held.values())
        assert len(pool._free_pages) == 7 - pages
        for other, expected in held.values():
            assert rows_of(pool, other, len(expected)).tolist() == expected
    assert refused > 10
    assert len(pool.tables) == 8, "more table rows than five requests at a time need"


def test_reserve_gives_pages_to_all_requests_or_to_none() -> None:
    pool = PagePool(pages=3, layers=1, kv_heads=1, head_dim=4)
    first, second = pool.add(), pool.add()
    with pytest.raises(OutOfBlocks, match="4 KV blocks needed, 3 available"):
        pool.reserve([first, second], [PAGE + 1, 2 * PAGE])
    assert len(pool._free_pages) == 3
    assert first.pages == second.pages == []
    pool.reserve([first, second], [PAGE + 1, PAGE])
    assert len(pool._free_pages) == 0


def test_a_runner_frees_every_page() -> None:
    runner = TinyRunner(tiny_llama(), kv_tokens=640)
    drafter = ModelDrafter("drafter", runner, target_vocab_size=203)
    streams = [Stream(str(size), [5] * size, PARAMS[1]) for size in (10, 70, 130)]
    for _ in range(3):
        for stream, answer in zip(
            streams, drafter.draft([stream.order(3, 4) for stream in streams]), strict=True
        ):
            assert isinstance(answer, Draft)
            stream.committed.extend(answer.tree.tokens[:1].tolist())
    drafter.forget([stream.name for stream in streams])
    assert len(runner._pool._free_pages) == 10

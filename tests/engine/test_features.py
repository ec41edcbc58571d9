"""Features, from the target's forward to drafters that read them (engine/features.py)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.generation import generate
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.feature_buffer import FeatureBuffer
from engine.hidden_states import HiddenStates, as_tensor
from engine.model import PackedModel
from engine.protocol import FeatureRange, Features, Verdict
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, blurred, eager_llama, llama
from tests.engine.drafters.feature_reader import FeatureReader, check_features, stock_features
from tests.engine.families import SUPPORTED, build
from tests.engine.test_model import chain
from tests.engine.verifiers.orders import order, verdict
from tests.identity import joined

LAYERS = (2, 0, 1)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=3)
SHARED = [9] * 40
PROMPTS = [[5, 6, 7], [*SHARED, 1], [*SHARED, 2], [3], [*SHARED, 3]]


def target(**options: Any) -> PreTrainedModel:
    return llama(layers=4, **options)


@pytest.mark.parametrize("family", SUPPORTED)
def test_hidden_states_are_those_of_the_stock_model(family: str) -> None:
    stock = build(SUPPORTED[family])
    stock.set_attn_implementation("eager")
    prompts = [[5, 6, 7, 8, 9, 10, 11], [20, 21]]
    expected = [stock_features(stock, prompt, LAYERS) for prompt in prompts]
    model = PackedModel(build(SUPPORTED[family]), kv_tokens=512)
    segments = [chain(str(number), prompt) for number, prompt in enumerate(prompts)]
    for segment in segments:
        model.kv.open(segment.request, [])
    states = HiddenStates(LAYERS)
    model.forward(segments, states)
    np.testing.assert_allclose(states.rows(LAYERS, range(7)), expected[0], atol=1e-4)
    np.testing.assert_allclose(states.rows(LAYERS, [8, 7]), expected[1][::-1], atol=1e-4)


def test_bfloat16_travels_as_its_bits() -> None:
    states = HiddenStates([0])
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    states.take(0, rows)
    sent = states.rows([0], [2, 0])
    assert sent.dtype == np.uint16
    assert torch.equal(as_tensor(sent), rows[[2, 0]])


@pytest.mark.parametrize("kv_tokens", [2048, 96])
@pytest.mark.parametrize("chunk", [512, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_drafters_get_the_features_of_all_they_read_and_outputs_stay(
    params: SamplingParams, chunk: int, kv_tokens: int
) -> None:
    """With prompts that share a prefix, in chunks, and preempted requests, which are computed
    again."""
    inner = ModelDrafter(
        "reader",
        PackedRunner(PackedModel(blurred(target(), 0.02), kv_tokens=2048)),
        target_vocab_size=VOCAB,
    )
    reader = FeatureReader(inner, LAYERS)
    verifier = NativeVerifier(PackedModel(target(), kv_tokens=kv_tokens))
    served = generate(verifier, PROMPTS, params, drafter=reader, depth=4, width=2, chunk=chunk)
    streams, commits = joined(served, len(PROMPTS))
    assert streams == [
        reference.generate(eager_llama(layers=4), prompt, params, params.seed or 0)
        for prompt in PROMPTS
    ]
    check_features(reader, eager_llama(layers=4))
    assert commits < 0.7 * len(PROMPTS) * params.max_tokens


def test_positions_of_the_prefix_cache_are_computed_for_who_wants_their_features() -> None:
    verifier = NativeVerifier(PackedModel(target(), kv_tokens=512))

    def computed(request: str, wanted: FeatureRange | None) -> Verdict:
        one = order(request, SHARED, params=GREEDY)
        return verdict(verifier, one._replace(features=wanted))

    assert computed("a", None).features is None
    assert computed("b", None).cached == 32
    for position, cached in ((0, 0), (20, 16)):
        answer = computed(f"from {position}", FeatureRange((1,), position))
        assert answer.cached == cached
        assert answer.features is not None
        assert answer.features.first == position
        assert answer.features.rows.shape == (len(SHARED) - position, 32)


def test_a_verifier_that_computes_a_request_again_sends_only_what_is_wanted() -> None:
    """In chunks, the first of which end before it."""

    def sent(wanted: int) -> list[Features]:
        verifier = NativeVerifier(PackedModel(target(), kv_tokens=512))
        pieces = []
        for base in (0, 40, 40, 40, 40):
            one = order("a", SHARED, params=GREEDY, base=base, chunk=8)
            features = verdict(verifier, one._replace(features=FeatureRange((1,), wanted))).features
            assert features is not None
            pieces.append(features)
        return pieces

    expected = np.concatenate([piece.rows for piece in sent(0)])
    assert len(expected) == 40
    pieces = sent(25)
    assert [(piece.first, len(piece.rows)) for piece in pieces[2:]] == [(25, 0), (25, 7), (32, 8)]
    np.testing.assert_allclose(np.concatenate([piece.rows for piece in pieces]), expected[25:])


@pytest.mark.parametrize("seed", range(5))
def test_the_buffer_keeps_what_is_needed_and_no_more(seed: int) -> None:
    """Against a dictionary of positions; the values say position, layer and computation."""
    rng = np.random.default_rng(seed)
    buffer = FeatureBuffer((4, 7), most_tokens=30)
    kept: dict[int, int] = {}
    needed = end = 0

    def rows(first: int, count: int, made: int) -> Features:
        positions = np.arange(first, first + count, dtype=np.float32)[:, None]
        return Features(first, positions + np.array([0, made / 100, 1000, 1000 + made / 100]))

    for made in range(60):
        first = end if rng.random() < 0.7 else int(rng.integers(end + 4))
        count = int(rng.integers(0, 8))
        needed = int(rng.integers(end + 1)) if rng.random() < 0.5 else needed
        buffer.add(rows(first, count, made))
        buffer.drop_before(needed)
        kept = {position: made for position, made in kept.items() if position < first}
        if first > end:
            kept = {}
        kept |= dict.fromkeys(range(first, first + count), made)
        end = first + count
        kept = {one: made for one, made in kept.items() if one >= max(needed, end - 30)}
        assert buffer.end - buffer.first == len(kept)
        if kept:
            assert (buffer.first, buffer.end) == (min(kept), max(kept) + 1)
        begin = int(rng.integers(buffer.first, buffer.end + 1))
        read = buffer.read(begin, buffer.end, (7,))
        assert read.first == begin
        if begin < buffer.end:
            expected = np.concatenate([rows(one, 1, kept[one]).rows for one in sorted(kept)])
            np.testing.assert_allclose(read.rows, expected[begin - buffer.first :, 2:])

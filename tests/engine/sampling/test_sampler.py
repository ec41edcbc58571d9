"""Sampling: an exact draw from the transformed softmax, equal on every path that computes it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from engine.sampling.noise import gumbel
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row, adjust, candidates, choose, logprobs, row_params
from engine.sampling.torch_kernels import perturbed_top_torch
from engine.sampling.vocabulary import ReducedVocabulary
from policies.ranges import REPETITION_PENALTY, TEMPERATURE, TOP_K
from tests import reference

VOCAB = 300
PROMPT = [5, 6, 5, 7, 200, 201]
OUTPUT = [8, 5, 8, 8, 299]


def row_at(params: SamplingParams, seed: int = 1, path: tuple[int, ...] = ()) -> Row:
    history = PROMPT + OUTPUT
    return Row(params, seed, len(history) + len(path), len(PROMPT), history, path)


def random_logits(seed: int, rows: int = 1, vocab: int = VOCAB, scale: float = 4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, vocab, generator=generator)


def reference_scores(logits: torch.Tensor, row: Row) -> NDArray[np.float64]:
    tokens = [*row.history, *row.path]
    assert row.position == len(tokens)
    return reference.perturbed(
        logits.double().numpy(), tokens, row.prompt_len, row.params, row.seed
    )


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.6, 0.6]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
    min_tokens=st.sampled_from([0, 5, 6, 12]),
    max_tokens=st.just(100),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
)
ENDS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-300, 1e-45, 1e-7, 0.01, TEMPERATURE.most]),
    top_k=st.sampled_from([0, 1, VOCAB - 1, int(TOP_K.most)]),
    top_p=st.sampled_from([5e-324, 1e-12, 1 - 1e-16, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324, 1e-45, 1.0]),
    repetition_penalty=st.sampled_from([REPETITION_PENALTY.least, REPETITION_PENALTY.most]),
    presence_penalty=st.sampled_from([-2.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 2.0]),
    min_tokens=st.sampled_from([0, 100]),
    max_tokens=st.just(100),
    stop_token_ids=st.just(tuple(range(1, VOCAB))),
)
"""At and near the ends of the ranges; with min_tokens one token is left."""
PATHS = st.lists(st.integers(0, VOCAB - 1) | st.sampled_from([8, 299, 1, 2]), max_size=4).map(tuple)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    wanted=st.lists(st.tuples(PARAMS, PATHS, st.integers(0, 2**64 - 1)), min_size=1, max_size=4),
    logits_seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.5, 4.0, 15.0]),
)
def test_every_path_chooses_what_the_literal_transforms_choose(
    wanted: list[tuple[SamplingParams, tuple[int, ...], int]], logits_seed: int, scale: float
) -> None:
    rows = [row_at(params, seed, path) for params, path, seed in wanted]
    logits = random_logits(logits_seed, len(rows), scale=scale)
    untouched = logits.clone()
    in_numba = choose(logits, rows)
    on_torch, _ = perturbed_top_torch(adjust(logits, rows), row_params(rows), 1)
    assert torch.equal(logits, untouched)
    assert on_torch[:, 0].tolist() == in_numba
    for i, row in enumerate(rows):
        scores = reference_scores(logits[i], row)
        assert in_numba[i] == scores.argmax() or reference.gap(scores) < 1e-5


@settings(max_examples=200, deadline=None, derandomize=True)
@given(wanted=st.lists(st.tuples(ENDS, PATHS), min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_at_the_ends_of_the_ranges_every_path_still_chooses_a_token(
    wanted: list[tuple[SamplingParams, tuple[int, ...]]], seed: int
) -> None:
    rows = [row_at(params, seed, path) for params, path in wanted]
    logits = random_logits(seed, len(rows))
    adjusted = adjust(logits, rows)
    chosen = choose(logits, rows)
    on_torch, confidence = perturbed_top_torch(adjusted, row_params(rows), 2)
    _, raw = candidates(logits, rows, 2)
    assert on_torch[:, 0].tolist() == chosen
    for row, token, own in zip(adjusted, chosen, rows, strict=True):
        assert 0 <= token < VOCAB
        assert torch.isfinite(row[token])
        assert token == 0 or own.params.min_tokens == 0
    for values in (confidence, raw):
        assert np.isfinite(values).all()
        # Logits reach 1e3 with a bias and penalties at their limits: float32 rounds there to 6e-5.
        assert (values.sum(1) <= 1 + 1e-4).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    params=PARAMS,
    seed=st.integers(0, 2**64 - 1),
    logits_seed=st.integers(0, 2**32),
    width=st.integers(1, 6),
)
def test_candidates_rank_tokens_by_score_with_softmax_confidences(
    params: SamplingParams, seed: int, logits_seed: int, width: int
) -> None:
    rows = [row_at(params, seed)]
    logits = random_logits(logits_seed)
    tokens, confidence = candidates(logits, rows, width)
    torch_tokens, torch_confidence = perturbed_top_torch(
        adjust(logits, rows), row_params(rows), width
    )
    np.testing.assert_array_equal(tokens, torch_tokens)
    assert tokens[0, 0] == choose(logits, rows)[0]

    scores = reference_scores(logits[0], rows[0])
    left = min(width, int(np.isfinite(scores).sum()))
    assert np.all(tokens[0, left:] == -1)
    assert np.all(confidence[0, left:] == 0)
    np.testing.assert_allclose(
        scores[tokens[0, :left]], np.sort(scores)[::-1][:left], atol=1e-4, rtol=1e-5
    )
    exact = reference.softmax(scores * (params.temperature or 1.0))
    np.testing.assert_allclose(torch_confidence[0, :left], exact[tokens[0, :left]], atol=1e-3)
    # The kernel leaves out the noise of tokens that stay e⁻⁸ below the best.
    np.testing.assert_allclose(confidence[0, :left], exact[tokens[0, :left]], atol=0.02)
    assert confidence.sum() < 1 + 1e-5


@pytest.mark.parametrize("vocab", [2, 50_000])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_looking_at_little_noise_never_changes_the_ranking(
    vocab: int, temperature: float, scale: float
) -> None:
    rows = [row_at(SamplingParams(temperature=temperature), seed) for seed in range(8)]
    logits = random_logits(3, len(rows), vocab, scale)
    width = min(vocab, 3)
    tokens, _ = candidates(logits, rows, width)
    for i, row in enumerate(rows):
        noise = gumbel(row.seed, row.position, np.arange(vocab))
        scores = logits[i].numpy() + np.float32(temperature) * noise
        np.testing.assert_array_equal(tokens[i], np.argsort(-scores, kind="stable")[:width])
        assert choose(logits[i : i + 1], [row]) == [tokens[i, 0]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.8),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=1.3, top_k=7, top_p=0.9, min_p=0.05),
    ],
)
def test_marginals_over_positions_are_the_transformed_softmax(params: SamplingParams) -> None:
    draws = 20_000
    logits = random_logits(11, vocab=10, scale=1.5)
    rows = [Row(params, seed=5, position=t, prompt_len=0, history=()) for t in range(draws)]
    counts = np.bincount(choose(logits.expand(draws, -1), rows), minlength=10)
    no_noise = reference.perturbed(logits[0].double().numpy(), [], 0, params, 5)
    no_noise -= gumbel(5, 0, np.arange(10))
    expected = reference.softmax(no_noise)
    possible = expected > 0
    assert possible.sum() > 1
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], draws * expected[possible]).pvalue > 1e-3


def test_equal_scores_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [40, 50, 60, 70]] = 3.0
    greedy = [row_at(SamplingParams(temperature=0.0))]
    assert choose(logits, greedy) == [40]
    for tokens, _ in (
        candidates(logits, greedy, 5),
        perturbed_top_torch(logits, row_params(greedy), 5),
    ):
        assert tokens.tolist() == [[40, 50, 60, 70, 0]]
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.08)):
        rows = [row_at(params, seed) for seed in range(64)]
        alike = logits.expand(64, -1)
        assert set(choose(alike, rows)) == {40, 50}
        on_torch, _ = perturbed_top_torch(alike, row_params(rows), 1)
        assert set(on_torch[:, 0].tolist()) == {40, 50}


def test_half_precision_logits_are_widened_before_anything_else() -> None:
    rows = [row_at(SamplingParams(temperature=0.0, logit_bias={3: 1e-3}))]
    logits = torch.full((1, VOCAB), 8.0, dtype=torch.bfloat16)
    assert choose(logits, rows) == [3]


def test_a_row_without_any_possible_token_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token can be chosen"):
        choose(torch.full((1, VOCAB), torch.nan), [row_at(SamplingParams())])


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(2)[0]
    expected = torch.log_softmax(logits.double(), -1)
    reported = logprobs(logits, 17, 3)
    assert reported.logprob == pytest.approx(expected[17].item(), abs=1e-5)
    best = expected.topk(3)
    assert [token for token, _ in reported.top] == best.indices.tolist()
    assert [value for _, value in reported.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert logprobs(logits, 17, 0).top == ()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    wanted=st.lists(st.tuples(PARAMS, PATHS, st.integers(0, 2**64 - 1)), min_size=1, max_size=3),
    logits_seed=st.integers(0, 2**32),
    width=st.integers(1, 6),
    transformed=st.booleans(),
)
def test_a_reduced_vocabulary_is_the_whole_one_with_all_other_tokens_ruled_out(
    wanted: list[tuple[SamplingParams, tuple[int, ...], int]],
    logits_seed: int,
    width: int,
    transformed: bool,
) -> None:
    rows = [
        row_at(
            params
            if transformed
            else SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p),
            seed,
            path,
        )
        for params, path, seed in wanted
    ]
    generator = torch.Generator().manual_seed(logits_seed)
    ids = torch.randperm(VOCAB, generator=generator)[:80].sort().values
    reduced = ReducedVocabulary(ids, VOCAB)
    logits = random_logits(logits_seed, len(rows), vocab=80)
    whole = reduced.widened(logits)
    assert choose(logits, rows, reduced) == choose(whole, rows)
    tokens, confidence = candidates(logits, rows, width, reduced)
    expected, expected_confidence = candidates(whole, rows, width)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(confidence, expected_confidence, atol=1e-6)
    if not any(row.changes_logits for row in rows):
        on_torch, _ = perturbed_top_torch(logits, row_params(rows), width, ids)
        np.testing.assert_array_equal(tokens, on_torch)

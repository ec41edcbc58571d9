"""Training batches: reproducible, full, and with whole conversations."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.prompts.corpus import Corpus, load_corpus
from cluster.built_in_models import TARGET, model_path
from lab.zoo.batches import TARGET_MIX, Mix, Sampler
from lab.zoo.ranking_tasks import (
    length_only_answer,
    prefill_only_answer,
    rank_only_answer,
    stated_count,
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(held_out=True)  # the small split: enough to draw from


def sampler(corpus: Corpus, mix: Mix = TARGET_MIX, seed: int = 0) -> Sampler:
    return Sampler(AutoTokenizer.from_pretrained(model_path(TARGET)), corpus, mix, seed=seed)


def test_a_batch_depends_on_seed_and_step_alone(corpus: Corpus) -> None:
    first, second = sampler(corpus), sampler(corpus)
    first.batch(0, 2, 512)
    np.testing.assert_array_equal(first.batch(7, 2, 512).tokens, second.batch(7, 2, 512).tokens)
    assert (second.batch(7, 2, 512).tokens != second.batch(8, 2, 512).tokens).any()


def test_rows_are_full_and_positions_restart_with_each_sample(corpus: Corpus) -> None:
    batch = sampler(corpus).batch(0, 4, 1024)
    assert batch.tokens.shape == batch.positions.shape == batch.weights.shape == (4, 1024)
    assert (batch.positions[:, 0] == 0).all()
    steps = np.diff(batch.positions, axis=1)
    assert ((steps == 1) | (batch.positions[:, 1:] == 0)).all()
    assert (batch.weights >= 0).all()
    assert (batch.weights > 0).mean() > 0.5


def test_a_long_batch_reaches_the_far_end_of_the_context(corpus: Corpus) -> None:
    batch = sampler(corpus).long_batch(0, 2, 2048)
    np.testing.assert_array_equal(batch.positions, np.tile(np.arange(2048), (2, 1)))


def test_ranking_answers() -> None:
    lengths = [120, 7, 44, 123, 7]
    assert prefill_only_answer(lengths) == "1"
    assert rank_only_answer(lengths) == "<<[0]3,[1]1,[2]2,[3]3,[4]1>>"
    assert length_only_answer([120, 7, 44], [10, 7, 1]) == "[0]10x012,[1]7x001,[2]1x045"


def test_stated_counts_keep_the_order() -> None:
    stated = [stated_count(length) for length in range(1, 2000)]
    assert stated == sorted(stated)
    assert {len(count) for count in stated} == {3}
    assert all(abs(int(count) - length) <= 5 for length, count in enumerate(stated[:990], 1))

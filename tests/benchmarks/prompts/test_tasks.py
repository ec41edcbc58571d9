"""Generated tasks: deterministic, solvable, and apart from the held-out ones."""

import random

import pytest

from benchmarks.prompts import topics
from benchmarks.prompts.corpus import Corpus, load_corpus
from benchmarks.prompts.tasks import (
    HELD_OUT_LENGTHS,
    KINDS,
    STATED_LENGTH_KINDS,
    TRAIN_LENGTHS,
    Source,
    Task,
    make_task,
)

PER_KIND = 60


@pytest.fixture(scope="module")
def train_corpus() -> Corpus:
    return load_corpus()


@pytest.fixture(scope="module")
def held_out_corpus() -> Corpus:
    return load_corpus(held_out=True)


def tasks_of(source: Source, kind: str, seed: int = 0) -> list[Task]:
    rng = random.Random(seed)
    return [make_task(source, rng, kind) for _ in range(PER_KIND)]


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_tasks_share_nothing_with_training(
    kind: str, train_corpus: Corpus, held_out_corpus: Corpus
) -> None:
    seen = {task.prompt for task in tasks_of(Source(train_corpus), kind)}
    held_out = tasks_of(Source(held_out_corpus, held_out=True), kind)
    assert seen.isdisjoint(task.prompt for task in held_out)
    if kind in STATED_LENGTH_KINDS:
        assert {task.stated_length for task in held_out} <= set(HELD_OUT_LENGTHS)


def test_held_out_lengths_topics_and_library_are_apart(
    train_corpus: Corpus, held_out_corpus: Corpus
) -> None:
    assert set(HELD_OUT_LENGTHS).isdisjoint(TRAIN_LENGTHS)
    assert set(topics.HELD_OUT).isdisjoint(topics.TRAIN)
    assert set(topics.HELD_OUT_COLUMNS).isdisjoint(topics.TRAIN_COLUMNS)
    held_out_code = set(held_out_corpus.code)
    assert held_out_code
    assert held_out_code.isdisjoint(train_corpus.code)
    names = {function.qualified_name for function in held_out_corpus.functions}
    assert names
    assert names.isdisjoint(function.qualified_name for function in train_corpus.functions)

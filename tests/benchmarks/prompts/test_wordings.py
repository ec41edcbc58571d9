"""Made-up wordings say what decides and nothing that would decide otherwise, hardly ever twice."""

import random
import re

import pytest

from benchmarks.prompts import templates
from benchmarks.prompts.corpus import load_corpus
from benchmarks.prompts.tasks import STATED_LENGTH_KINDS
from benchmarks.prompts.wordings import made_up

COUNT = 500
SENTENCES = load_corpus(held_out=True).sentences  # the small split: enough to draw from
DECIDES = {"table": r"(?i)\btabulate|\btable\b", "json": "JSON", "repeat": r"\btimes\b"}


def wordings(kind: str, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [made_up(kind, SENTENCES, rng) for _ in range(COUNT)]


def fields(wording: str) -> list[str]:
    return sorted(re.findall("{(.*?)}", wording))


@pytest.mark.parametrize("kind", STATED_LENGTH_KINDS)
def test_they_have_what_the_written_ones_have(kind: str) -> None:
    (expected,) = {tuple(fields(wording)) for wording in templates.TRAIN[kind]}
    assert {tuple(fields(wording)) for wording in wordings(kind)} == {expected}


@pytest.mark.parametrize("kind", STATED_LENGTH_KINDS)
def test_only_their_own_kind_is_named(kind: str) -> None:
    for wording in wordings(kind):
        assert [one for one, word in DECIDES.items() if re.search(word, wording)] == [
            one for one in DECIDES if one == kind
        ]


@pytest.mark.parametrize("kind", STATED_LENGTH_KINDS)
def test_they_are_not_to_be_known_by_heart(kind: str) -> None:
    made = wordings(kind)
    assert made == wordings(kind)
    assert len(set(made)) > 0.8 * COUNT
    assert set(made).isdisjoint(templates.HELD_OUT[kind])
    assert len({wording.index("{n}") for wording in made}) > 10

"""Generates wordings of requests with a stated length, a new one for each sample.

The model memorises a few dozen fixed wordings, and takes an unknown one for the kind that it
resembles most (lab/docs/training.md). In a generated wording only the deciding parts can be
learned: the parts of its kind stand in any order among words that decide nothing.
"""

import random
import re
from collections.abc import Sequence

from benchmarks.prompts.templates import TRAIN

# The parts that make a request one of its kind, with the forms of each. A list needs no word for
# its kind.
_PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "count": (
        ("count", "counting", "numbers", "numbered"),
        ("{n}", "to {n}", "up to {n}", "until {n}"),
    ),
    "count_by": (
        ("{n} numbers", "{n} terms", "{n} entries"),
        ("from {a}", "starting at {a}", "first {a}"),
        ("step {step}", "steps of {step}", "by {step}", "add {step}"),
    ),
    "list": (("{n} {topic}", "{topic}, {n}", "{n} items: {topic}"),),
    "table": (
        ("table", "tabulate", "tabulated"),
        ("{n}", "{n} rows"),
        ("{topic}",),
        ("{column}",),
    ),
    "json": (("JSON",), ("{n}", "{n} items"), ("{topic}",), ("{column}",)),
    "repeat": (('"{text}"',), ("{n} times",)),
}
_MOST_STRAY_WORDS = 6
_LIBRARY_SHARE = 0.4
_MARKED_SHARE = 0.15
_MARKS = (",", ":", ",", ";")
_ENDINGS = (".", ".", "?", "!", "")


def _words(text: str) -> list[str]:
    return re.findall("[A-Za-z]+", re.sub("{.*?}", "", text))


_DECIDING = {word for parts in _PARTS.values() for part in parts for word in _words(" ".join(part))}


def _idle(words: Sequence[str]) -> list[str]:
    """The words that do not decide a kind."""
    return [word for word in words if not {word, word.lower()} & _DECIDING]


# The other words in templates of these kinds: none of them may become a sign of a kind.
_IDLE_WORDS = sorted(
    {word for kind in _PARTS for text in TRAIN[kind] for word in _idle(_words(text))}
)


def made_up(kind: str, sentences: Sequence[str], rng: random.Random) -> str:
    """A random template of `kind`, hardly ever generated twice; some of its stray words come from
    the library."""
    pieces = [rng.choice(part) for part in _PARTS[kind]]
    rng.shuffle(pieces)
    for _ in range(rng.randint(0, _MOST_STRAY_WORDS)):
        of_library = rng.random() < _LIBRARY_SHARE
        stray = _idle(_words(rng.choice(sentences))) if of_library else _IDLE_WORDS
        pieces.insert(rng.randint(0, len(pieces)), rng.choice(stray or _IDLE_WORDS))
    marked = [
        piece + rng.choice(_MARKS) if rng.random() < _MARKED_SHARE else piece
        for piece in pieces[:-1]
    ]
    text = " ".join([*marked, pieces[-1]]) + rng.choice(_ENDINGS)
    return text[0].upper() + text[1:]

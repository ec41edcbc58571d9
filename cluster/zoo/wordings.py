"""Wordings of requests with a stated length, made up anew for each sample.

A score of wordings is known by heart, and one that was never read is taken for whichever kind it
resembles (docs/zoo.md). Of a made-up one nothing can be known by heart but what decides: the parts
of a kind stand in any order among words that decide nothing.
"""

import random
import re
from collections.abc import Sequence

from cluster.zoo.templates import TRAIN

# What makes a request one of its kind, each part in one of its forms. A list needs no word for it.
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
    """Those that decide nothing."""
    return [word for word in words if not {word, word.lower()} & _DECIDING]


# What wordings of these kinds say besides: none of it may come to stand for a kind.
_IDLE_WORDS = sorted(
    {word for kind in _PARTS for text in TRAIN[kind] for word in _idle(_words(text))}
)


def made_up(kind: str, sentences: Sequence[str], rng: random.Random) -> str:
    """A template of `kind` that is hardly ever made twice; stray words are the library's, too."""
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

"""Generated tasks with answers, of distinct kinds, which policies can distinguish while serving.

Answers of a stated length label every item with the number of items left, including itself, so that
ending is a local decision: the item with label 1 is the last. Held-out tasks use templates, topics
and lengths that do not occur in training.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.prompts import templates, topics
from benchmarks.prompts.corpus import Corpus
from benchmarks.prompts.wordings import made_up

# Lengths in items; 7 of 39 are held out.
HELD_OUT_LENGTHS = (12, 17, 21, 23, 26, 31, 35)
TRAIN_LENGTHS = tuple(n for n in range(2, 41) if n not in HELD_OUT_LENGTHS)
STATED_LENGTH_KINDS = ("count", "count_by", "list", "table", "json", "repeat")
OTHER_KINDS = ("arithmetic", "copy", "edit", "function", "code", "docs")
KINDS = STATED_LENGTH_KINDS + OTHER_KINDS
_STRAY_SHARE = 0.25
_MADE_UP_SHARE = 0.35
_MOST_STRAY_WORDS = 4


@dataclass(frozen=True)
class Task:
    kind: str
    prompt: str
    answer: str
    stated_length: int | None = None


@dataclass(frozen=True)
class Source:
    """The input of the generators: one split's templates, topics, lengths and library text."""

    corpus: Corpus
    held_out: bool = False

    def template(self, kind: str, rng: random.Random) -> str:
        if self.held_out:
            return rng.choice(templates.HELD_OUT[kind])
        template = rng.choice(templates.TRAIN[kind])
        if kind not in STATED_LENGTH_KINDS:
            return template
        draw = rng.random()
        if draw < _MADE_UP_SHARE:
            return made_up(kind, self.corpus.sentences, rng)
        if draw < _MADE_UP_SHARE + _STRAY_SHARE:
            return self._with_stray_words(template, rng)
        return template

    def _with_stray_words(self, template: str, rng: random.Random) -> str:
        """Inserts words without meaning, so that the model cannot memorise wordings and must attend
        to what matters."""
        words = template.split(" ")
        for _ in range(rng.randint(1, _MOST_STRAY_WORDS)):
            stray = rng.choice(re.findall("[A-Za-z]+", rng.choice(self.corpus.sentences)))
            words.insert(rng.randint(0, len(words)), stray)
        return " ".join(words)

    def length(self, rng: random.Random, at_most: int = 40) -> int:
        if self.held_out:
            return rng.choice([n for n in HELD_OUT_LENGTHS if n <= at_most])
        # Short lengths are the most common, but long ones must occur often enough to be learned.
        shortened = rng.random() < 0.4
        lengths = TRAIN_LENGTHS[:12] if shortened else TRAIN_LENGTHS
        return rng.choice([n for n in lengths if n <= at_most])

    def number(self, rng: random.Random, low: int, high: int) -> int:
        """A number in a request that is not a length. In training it is never a held-out length,
        because the model would learn that these numbers are not lengths."""
        numbers = range(low, high + 1)
        if self.held_out:
            return rng.choice(numbers)
        return rng.choice([number for number in numbers if number not in HELD_OUT_LENGTHS])

    def topic(self, rng: random.Random) -> tuple[str, list[str]]:
        pool = topics.HELD_OUT if self.held_out else topics.TRAIN
        topic = rng.choice(sorted(pool))
        return topic, pool[topic]

    def column(self, rng: random.Random) -> str:
        return rng.choice(topics.HELD_OUT_COLUMNS if self.held_out else topics.TRAIN_COLUMNS)


def draw_kind(rng: random.Random, kinds: Sequence[str] = KINDS) -> str:
    return rng.choices(kinds, weights=[_KIND_WEIGHTS[kind] for kind in kinds])[0]


def make_task(source: Source, rng: random.Random, kind: str | None = None) -> Task:
    """One task of the given kind, or of a random one."""
    task = _GENERATORS[kind or draw_kind(rng)](source, rng)
    if source.held_out:
        return task
    return Task(task.kind, _dressed(task.prompt, source, rng), task.answer, task.stated_length)


_LABELS = {
    "count_by": r"^(\d+): ",
    "list": r"^(\d+): ",
    "repeat": r"^(\d+): ",
    "table": r"^\| (\d+) \|",
    "json": r'^\{"left": (\d+),',
}

_OPENINGS = ("Please help. ", "Hello. ", "Now a task. ", "Hi! ", "Quick: ", "Next: ")
_CLOSINGS = (" Thanks.", " Be brief.", " Please.", " No extra text.", " Do it well.")


def _dressed(prompt: str, source: Source, rng: random.Random) -> str:
    """Surrounds the request with small talk or an unrelated sentence, so that wording does not
    decide."""
    draw = rng.random()
    if draw < 0.15:
        prompt = rng.choice(_OPENINGS) + prompt
    elif draw < 0.3:
        prompt = f"{rng.choice(source.corpus.sentences)} {prompt}"
    draw = rng.random()
    if draw < 0.15:
        prompt += rng.choice(_CLOSINGS)
    elif draw < 0.2:
        prompt += f" {rng.choice(source.corpus.sentences)}"
    return prompt


def _count(source: Source, rng: random.Random) -> Task:
    n = source.length(rng)
    answer = "\n".join(_labelled([str(i) for i in range(1, n + 1)]))
    return Task("count", source.template("count", rng).format(n=n), answer, n)


def _count_by(source: Source, rng: random.Random) -> Task:
    n, start, step = source.length(rng), source.number(rng, 1, 50), rng.choice((1, 2, 5, 10))
    answer = "\n".join(_labelled([str(start + i * step) for i in range(n)]))
    prompt = source.template("count_by", rng).format(n=n, a=start, step=step)
    return Task("count_by", prompt, answer, n)


def _drawn(words: list[str], n: int, rng: random.Random) -> list[str]:
    """n words, repeating only where the pool is exhausted."""
    drawn: list[str] = []
    while len(drawn) < n:
        drawn += rng.sample(words, min(len(words), n - len(drawn)))
    return drawn


def _in_turn(words: list[str], n: int, rng: random.Random) -> list[str]:
    """n words in the pool's order from a random one on, an order that a small model can learn."""
    start = rng.randrange(len(words))
    return [words[(start + i) % len(words)] for i in range(n)]


def _labelled(items: list[str]) -> list[str]:
    """Each item after the number of items left."""
    return [f"{len(items) - i}: {item}" for i, item in enumerate(items)]


def _list(source: Source, rng: random.Random) -> Task:
    n = source.length(rng)
    topic, words = source.topic(rng)
    items = _in_turn(words, n, rng)
    answer = "\n".join(_labelled(items))
    return Task("list", source.template("list", rng).format(n=n, topic=topic), answer, n)


def _table(source: Source, rng: random.Random) -> Task:
    n, column = source.length(rng, at_most=30), source.column(rng)
    topic, words = source.topic(rng)
    first = rng.randint(1, 60)
    rows = [f"| {n - i} | {item} | {first + i} |" for i, item in enumerate(_in_turn(words, n, rng))]
    answer = "\n".join([f"| left | {topic} | {column} |", "|---|---|---|", *rows])
    prompt = source.template("table", rng).format(n=n, topic=topic, column=column)
    return Task("table", prompt, answer, n)


def _json(source: Source, rng: random.Random) -> Task:
    n, column = source.length(rng, at_most=20), source.column(rng)
    topic, words = source.topic(rng)
    first = rng.randint(1, 60)
    items = [
        f'{{"left": {n - i}, "name": "{item}", "{column}": {first + i}}}'
        for i, item in enumerate(_in_turn(words, n, rng))
    ]
    answer = "[\n" + ",\n".join(items) + "\n]"
    prompt = source.template("json", rng).format(n=n, topic=topic, column=column)
    return Task("json", prompt, answer, n)


def _repeat(source: Source, rng: random.Random) -> Task:
    n = source.length(rng)
    text = _phrase(source, rng)
    answer = "\n".join(_labelled([text] * n))
    return Task("repeat", source.template("repeat", rng).format(n=n, text=text), answer, n)


def _phrase(source: Source, rng: random.Random) -> str:
    """One to three words. In training also any of the library's words, which are too many to
    memorise."""
    if source.held_out or rng.random() < 0.3:
        return " ".join(_drawn(source.topic(rng)[1], rng.randint(1, 3), rng))
    words = re.findall("[A-Za-z]+", rng.choice(source.corpus.sentences))
    return " ".join(rng.sample(words, min(len(words), rng.randint(1, 3))))


def _arithmetic(source: Source, rng: random.Random) -> Task:
    a, b = source.number(rng, 1, 99), source.number(rng, 1, 99)
    operator = rng.choice("+-*")
    if operator == "*":
        a, b = source.number(rng, 2, 12), source.number(rng, 2, 9)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    result = {"+": a + b, "-": a - b, "*": a * b}[operator]
    expression = f"{a} {operator} {b}"
    prompt = source.template("arithmetic", rng).format(sum=expression)
    return Task("arithmetic", prompt, f"{expression} = {result}")


def _text(source: Source, rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(source.corpus.sentences)
    return " ".join(_drawn(source.topic(rng)[1], rng.randint(3, 20), rng))


def _copy(source: Source, rng: random.Random) -> Task:
    text = _text(source, rng)
    return Task("copy", source.template("copy", rng).format(text=text), text)


def _edit(source: Source, rng: random.Random) -> Task:
    words = _text(source, rng).split()
    old = rng.choice(words)
    new = rng.choice(source.topic(rng)[1])
    answer = " ".join(new if word == old else word for word in words)
    prompt = source.template("edit", rng).format(old=old, new=new, text=" ".join(words))
    return Task("edit", prompt, answer)


_FUNCTIONS = (
    ("adds {k} to x", "def {name}(x):\n    return x + {k}"),
    ("multiplies x by {k}", "def {name}(x):\n    return x * {k}"),
    ("returns the sum of a list", "def {name}(values):\n    total = 0\n    for value in values:\n"
     "        total += value\n    return total"),
    ("counts the {word} in a list", "def {name}(values):\n    count = 0\n    for value in values:\n"
     '        if value == "{word}":\n            count += 1\n    return count'),
    ("keeps the values above {k}", "def {name}(values):\n    return [value for value in values "
     "if value > {k}]"),
    ("prints {word} {k} times", 'def {name}():\n    for _ in range({k}):\n        print("{word}")'),
    ("tells whether x is at least {k}", "def {name}(x):\n    return x >= {k}"),
    ("reads a file and returns its lines", "def {name}(path):\n    with open(path) as file:\n"
     "        return file.read().splitlines()"),
    ("returns the largest of a list", "def {name}(values):\n    largest = values[0]\n"
     "    for value in values:\n        if value > largest:\n            largest = value\n"
     "    return largest"),
    ("reverses a string", "def {name}(text):\n    return text[::-1]"),
)  # fmt: skip


def _function(source: Source, rng: random.Random) -> Task:
    does, body = rng.choice(_FUNCTIONS)
    word = rng.choice(source.topic(rng)[1]).lower()
    values = {
        "name": f"{rng.choice(('get', 'do', 'make', 'run', 'find'))}_{word}",
        "k": str(source.number(rng, 2, 99)),
        "word": word,
    }
    does = does.format(**values)
    prompt = source.template("function", rng).format(name=values["name"], does=does)
    return Task("function", prompt, body.format(**values))


def _code(source: Source, rng: random.Random) -> Task:
    function = rng.choice(source.corpus.functions)
    prompt = source.template("code", rng).format(
        signature=function.signature, summary=function.summary, name=function.qualified_name
    )
    return Task("code", prompt, function.source)


def _docs(source: Source, rng: random.Random) -> Task:
    function = rng.choice(source.corpus.functions)
    prompt = source.template("docs", rng).format(
        signature=function.signature, summary=function.summary, name=function.qualified_name
    )
    return Task("docs", prompt, function.docstring)


_GENERATORS: dict[str, Callable[[Source, random.Random], Task]] = {
    "count": _count,
    "count_by": _count_by,
    "list": _list,
    "table": _table,
    "json": _json,
    "repeat": _repeat,
    "arithmetic": _arithmetic,
    "copy": _copy,
    "edit": _edit,
    "function": _function,
    "code": _code,
    "docs": _docs,
}
# Half of the weight is on kinds of a stated length, with which the model learns to stop; the rest
# adds variety.
_KIND_WEIGHTS = {
    "count": 4,
    "count_by": 3,
    "list": 5,
    "table": 5,
    "json": 3,
    "repeat": 3,
    "arithmetic": 4,
    "copy": 5,
    "edit": 4,
    "function": 2,
    "code": 3,
    "docs": 3,
}

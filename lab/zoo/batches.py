"""Endless training batches: whole conversations and pieces of the corpus, packed into rows.

Every sample is new; nothing is stored. A conversation is never cut, and the rest of its row is
filled with corpus text, so no position is padding. Samples of one row do not attend to each other.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from benchmarks.prompts.corpus import Corpus
from benchmarks.prompts.messages import chat_text, user_message
from benchmarks.prompts.tasks import (
    KINDS,
    STATED_LENGTH_KINDS,
    Source,
    draw_kind,
    make_task,
)
from lab.zoo.chat import END, END_OF_TEXT, SPECIAL_TOKENS, VOCAB_SIZE
from lab.zoo.ranking_tasks import (
    draw_batch_size,
    length_only_answer,
    numbers_answer,
    prefill_only_answer,
    rank_only_answer,
)
from policies.scheduling.rank_prompts import FORMS, Message, request_line

_PROMPT_WEIGHT = 0.1
_ANSWER_WEIGHT = 1.0
_RANKING_WEIGHT = 2.0  # few tokens per prompt, so each counts more
_CORPUS_WEIGHT = 0.5
# Only few tokens of an answer decide its length: its first number and its end.
_FIRST_NUMBER_FACTOR = 4.0
_END_FACTOR = 4.0
_SPAN_TOKENS = (100, 400)
_ECHO_TOKENS = (4, 48)
_MOST_WAITING = 4
_RANKING_FORMS = ("length_only", "rank_only", "prefill_only")
_RANKING_FORM_WEIGHTS = (8, 1, 1)
_STATED_SHARE = 0.75  # of a ranking prompt's requests have a stated length; others are of any kind
_EXERCISE_SIZES = (1, 2, 3, 4, 6, 8, 10)
_EXERCISE_NUMBERS = range(2, 100)
_EXERCISE_WORDS = 6


@dataclass(frozen=True)
class Mix:
    """How often each sort of sample is drawn (by samples, not by tokens)."""

    tasks: float
    ranking: float
    code: float
    prose: float
    echo: float = 0.0
    numbers: float = 0.0
    kinds: tuple[str, ...] = KINDS


TARGET_MIX = Mix(tasks=0.58, ranking=0.18, code=0.06, prose=0.05, echo=0.06, numbers=0.07)
# Tasks are learned first. Distinguishing the requests of a ranking prompt takes longer, and many
# prompts: first which number belongs to which request, then which kind.
NUMBERS_MIX = Mix(tasks=0.4, ranking=0.34, code=0.04, prose=0.04, echo=0.04, numbers=0.14)
RANKING_MIX = Mix(tasks=0.3, ranking=0.5, code=0.05, prose=0.05, echo=0.04, numbers=0.06)


@dataclass(frozen=True)
class Batch:
    """Rows of token ids; for each token its position within its sample, and the weight of its
    loss."""

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    tokens: list[int]
    weights: list[float]


class Sampler:
    """Draws samples of a mix and packs them. A batch depends on (seed, mix, step) alone.

    `answered` holds conversations with the target's own answers, by kind of task; if given, half of
    the tasks are taken from it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        corpus: Corpus,
        mix: Mix,
        answered: Mapping[str, Sequence[Sample]] | None = None,
        seed: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._source = Source(corpus)
        self._rng = random.Random()
        self._seed = seed
        self._mix = mix
        self._answered = answered or {}
        self._answer_mark = tokenizer.convert_tokens_to_ids("<|assistant|>")
        self._digits = frozenset(tokenizer.convert_tokens_to_ids(list("0123456789")))
        self._code = self._encoded(corpus.code)
        self._prose = self._encoded(corpus.prose)

    def use(self, mix: Mix) -> None:
        self._mix = mix

    def batch(self, step: int, rows: int, row_tokens: int) -> Batch:
        self._rng.seed(f"{self._seed}/{step}")
        waiting: list[Sample] = []
        return _joined([self._row(row_tokens, waiting) for _ in range(rows)])

    def long_batch(self, step: int, rows: int, row_tokens: int) -> Batch:
        """Rows of one corpus text each, so that distant positions are trained too."""
        self._rng.seed(f"{self._seed}/{step}")
        streams = [self._rng.choice((self._code, self._prose)) for _ in range(rows)]
        return _joined([[self._span(stream, row_tokens)] for stream in streams])

    def _row(self, row_tokens: int, waiting: list[Sample]) -> list[Sample]:
        """A full row. Samples that do not fit are kept for the batch's next rows."""
        row: list[Sample] = []
        room = row_tokens
        while room:
            sample = next((one for one in waiting if len(one.tokens) <= room), None)
            if sample is not None:
                waiting.remove(sample)
            elif len(waiting) < _MOST_WAITING:
                drawn = self._sample()
                if len(drawn.tokens) <= row_tokens:
                    waiting.append(drawn)
                continue
            else:
                sample = self._span(self._rng.choice((self._code, self._prose)), room)
            row.append(sample)
            room -= len(sample.tokens)
        return row

    def _sample(self) -> Sample:
        mix = self._mix
        sort = self._rng.choices(
            ("tasks", "ranking", "echo", "numbers", "code", "prose"),
            weights=(mix.tasks, mix.ranking, mix.echo, mix.numbers, mix.code, mix.prose),
        )[0]
        if sort == "tasks":
            return self._task()
        if sort == "ranking":
            return self._ranking()
        if sort == "echo":
            return self._echo()
        if sort == "numbers":
            return self._numbers()
        span = self._rng.randint(*_SPAN_TOKENS)
        return self._span(self._code if sort == "code" else self._prose, span)

    def _task(self) -> Sample:
        kind = draw_kind(self._rng, self._mix.kinds)
        if kind in self._answered and self._rng.random() < 0.5:
            return self._rng.choice(self._answered[kind])
        task = make_task(self._source, self._rng, kind)
        sample = self.conversation(user_message(task), task.answer, _ANSWER_WEIGHT)
        return sample if task.stated_length is None else self._number_stressed(sample)

    def _number_stressed(self, sample: Sample) -> Sample:
        """Gives more weight to the first number of the answer, which is the number of items that
        follow."""
        weights = list(sample.weights)
        begun = False
        for position in range(sample.tokens.index(self._answer_mark), len(weights)):
            is_digit = sample.tokens[position] in self._digits
            if begun and not is_digit:
                break
            begun = is_digit
            weights[position] *= _FIRST_NUMBER_FACTOR if is_digit else 1.0
        return Sample(sample.tokens, weights)

    def _ranking(self) -> Sample:
        """A ranking prompt about new tasks, and the answer of a perfect predictor."""
        kinds = [
            draw_kind(self._rng, STATED_LENGTH_KINDS if stated else KINDS)
            for stated in self._rng.choices(
                (True, False),
                weights=(_STATED_SHARE, 1 - _STATED_SHARE),
                k=draw_batch_size(self._rng),
            )
        ]
        tasks = [make_task(self._source, self._rng, kind) for kind in kinds]
        answers = self._tokenizer([task.answer for task in tasks])["input_ids"]
        lengths = [len(answer) + 1 for answer in answers]  # the end token is generated too
        form = self._rng.choices(_RANKING_FORMS, weights=_RANKING_FORM_WEIGHTS)[0]
        if len(tasks) == 1:
            form = "length_only"  # one request has a length, but no rank
        if form == "length_only":
            answer = length_only_answer(lengths, [task.stated_length or 1 for task in tasks])
        elif form == "rank_only":
            answer = rank_only_answer(lengths)
        else:
            answer = prefill_only_answer(lengths)
        messages = FORMS[form]([task.prompt for task in tasks])
        return self.conversation(messages, answer, _RANKING_WEIGHT)

    def _numbers(self) -> Sample:
        """An exercise for ranking prompts: which number is in which line."""
        lines, numbers = [], []
        for _ in range(self._rng.choice(_EXERCISE_SIZES)):
            words = self._rng.choice(self._source.corpus.sentences).split()
            start = self._rng.randrange(len(words))
            words = words[start : start + self._rng.randint(1, _EXERCISE_WORDS)]
            numbers.append(self._rng.choice(_EXERCISE_NUMBERS))
            words.insert(self._rng.randint(0, len(words)), str(numbers[-1]))
            lines.append(" ".join(words))
        requests = [request_line(position, line) for position, line in enumerate(lines)]
        message: Message = {"role": "user", "content": "\n".join(["Numbers:", *requests])}
        return self.conversation([message], numbers_answer(numbers), _RANKING_WEIGHT)

    def _echo(self) -> Sample:
        """An exercise in copying: random tokens can be predicted from the prompt only."""
        before, after = self._ids("<|user|>Copy this text: "), self._ids("<|end|><|assistant|>")
        length = self._rng.randint(*_ECHO_TOKENS)
        text = [self._rng.randrange(len(SPECIAL_TOKENS), VOCAB_SIZE) for _ in range(length)]
        prompt = [*before, *text, *after]
        answer = [*text, *self._ids(END)]
        return Sample(prompt + answer, [0.0] * len(prompt) + [_ANSWER_WEIGHT] * len(answer))

    def conversation(self, messages: list[Message], answer: str, weight: float) -> Sample:
        prompt = self._ids(chat_text(messages))
        answered = self._ids(answer + "<|end|>")
        weights = [_PROMPT_WEIGHT] * len(prompt) + [weight] * len(answered)
        weights[-1] *= _END_FACTOR
        return Sample(prompt + answered, weights)

    def _span(self, stream: npt.NDArray[np.int16], length: int) -> Sample:
        start = self._rng.randrange(len(stream) - length)
        return Sample(stream[start : start + length].tolist(), [_CORPUS_WEIGHT] * length)

    def _encoded(self, texts: list[str]) -> npt.NDArray[np.int16]:
        ids = self._tokenizer([text + END_OF_TEXT for text in texts])["input_ids"]
        return np.concatenate([np.array(one, dtype=np.int16) for one in ids])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids


def _joined(rows: list[list[Sample]]) -> Batch:
    return Batch(
        np.array([[token for sample in row for token in sample.tokens] for row in rows]),
        np.array([[i for sample in row for i in range(len(sample.tokens))] for row in rows]),
        np.array([[w for sample in row for w in sample.weights] for row in rows], np.float32),
    )

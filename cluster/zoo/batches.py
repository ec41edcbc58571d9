"""Endless training batches: whole conversations and pieces of the corpus packed into rows.

Every sample is fresh; nothing is stored. A conversation is never cut, and the rest of its row is
filled with corpus text, so no position is padding. Samples of a row do not see each other.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from cluster.zoo.chat import END, END_OF_TEXT, SPECIAL_TOKENS, VOCAB_SIZE
from cluster.zoo.corpus import Corpus
from cluster.zoo.ranking_tasks import ANSWERS, draw_batch_size, length_bucket
from cluster.zoo.tasks import KINDS, STATED_LENGTH_KINDS, Source, Task, draw_kind, make_task
from policies.ranking import FORMS, Message, request_line

_PROMPT_WEIGHT = 0.1
_ANSWER_WEIGHT = 1.0
_RANKING_WEIGHT = 2.0  # few tokens, each of which took a whole prompt to read
_CORPUS_WEIGHT = 0.5
# Few tokens of a whole answer decide how long it gets: its first number, and its end.
_FIRST_NUMBER_FACTOR = 4.0
_END_FACTOR = 4.0
_SPAN_TOKENS = (100, 400)
_ECHO_TOKENS = (4, 48)
_FITTING_TRIES = 4
_RANKING_FORMS = ("length_only", "rank_only", "prefill_only")
_RANKING_FORM_WEIGHTS = (8, 1, 1)
_STATED_SHARE = 0.5  # of a ranking prompt's requests; the others are of any kind
NO_BUCKET = -1


@dataclass(frozen=True)
class Mix:
    """How often each sort of sample is drawn (by samples, not by tokens)."""

    tasks: float
    ranking: float
    code: float
    prose: float
    echo: float = 0.0
    kinds: tuple[str, ...] = KINDS


TARGET_MIX = Mix(tasks=0.52, ranking=0.32, code=0.05, prose=0.04, echo=0.07)


@dataclass(frozen=True)
class Batch:
    """Rows of token ids; for each its position in its own sample, and the weight of its loss.

    `buckets` says at the mark that closes a ranked request how long its answer is
    (`length_bucket`), and NO_BUCKET elsewhere.
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    buckets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    tokens: list[int]
    weights: list[float]
    buckets: dict[int, int] = field(default_factory=dict)


class Sampler:
    """Draws samples of a mix and packs them. A batch depends on (seed, step) alone.

    `answered` holds conversations in the target's own words, by kind of task: half of the tasks
    come from there when it is given.
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

    def batch(self, step: int, rows: int, row_tokens: int) -> Batch:
        self._rng.seed(f"{self._seed}/{step}")
        return _joined([self._row(row_tokens) for _ in range(rows)])

    def long_batch(self, step: int, rows: int, row_tokens: int) -> Batch:
        """Rows of one corpus text each, so that far positions are trained too."""
        self._rng.seed(f"{self._seed}/{step}")
        streams = [self._rng.choice((self._code, self._prose)) for _ in range(rows)]
        return _joined([[self._span(stream, row_tokens)] for stream in streams])

    def _row(self, row_tokens: int) -> list[Sample]:
        row: list[Sample] = []
        room = row_tokens
        while room:
            tried = (self._sample() for _ in range(_FITTING_TRIES))
            fitting = next((sample for sample in tried if len(sample.tokens) <= room), None)
            row.append(fitting or self._span(self._rng.choice((self._code, self._prose)), room))
            room -= len(row[-1].tokens)
        return row

    def _sample(self) -> Sample:
        mix = self._mix
        sort = self._rng.choices(
            ("tasks", "ranking", "echo", "code", "prose"),
            weights=(mix.tasks, mix.ranking, mix.echo, mix.code, mix.prose),
        )[0]
        if sort == "tasks":
            return self._task()
        if sort == "ranking":
            return self._ranking()
        if sort == "echo":
            return self._echo()
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
        """More weight on the first number of the answer: it says how many items follow."""
        weights = list(sample.weights)
        begun = False
        for position in range(sample.tokens.index(self._answer_mark), len(weights)):
            is_digit = sample.tokens[position] in self._digits
            if begun and not is_digit:
                break
            begun = is_digit
            weights[position] *= _FIRST_NUMBER_FACTOR if is_digit else 1.0
        return Sample(sample.tokens, weights, sample.buckets)

    def _ranking(self) -> Sample:
        requests, lengths = self._requests()
        form = self._rng.choices(_RANKING_FORMS, weights=_RANKING_FORM_WEIGHTS)[0]
        if len(requests) == 1:
            form = "length_only"  # one request has a length, but no rank
        messages = FORMS[form](requests)
        sample = self.conversation(messages, ANSWERS[form](lengths), _RANKING_WEIGHT)
        marks = self._closing_marks(chat_text(messages), requests)
        buckets = {mark: length_bucket(length) for mark, length in zip(marks, lengths, strict=True)}
        return Sample(sample.tokens, sample.weights, buckets)

    def _closing_marks(self, text: str, requests: Sequence[str]) -> list[int]:
        """For each request of a ranking prompt, the index of the token at which it ends."""
        encoding = self._tokenizer(text)
        marks = []
        end = text.index("Requests:\n")
        for position, request in enumerate(requests):
            line = request_line(position, request)
            end = text.index(line, end) + len(line)
            marks.append(encoding.char_to_token(end - 1))
        return marks

    def _requests(self) -> tuple[list[str], list[int]]:
        """A ranking batch: requests and the token counts of their answers."""
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
        # The end token is generated too.
        return [task.prompt for task in tasks], [len(answer) + 1 for answer in answers]

    def _echo(self) -> Sample:
        """A lesson in copying: random tokens leave nothing but the prompt to predict from."""
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
        np.array([[b for sample in row for b in _dense(sample)] for row in rows]),
    )


def _dense(sample: Sample) -> list[int]:
    return [sample.buckets.get(i, NO_BUCKET) for i in range(len(sample.tokens))]


def user_message(task: Task) -> list[Message]:
    return [{"role": "user", "content": task.prompt}]


def chat_text(messages: list[Message]) -> str:
    """What `apply_chat_template` renders, without the cost of Jinja for every sample."""
    turns = "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in messages)
    return turns + "<|assistant|>"

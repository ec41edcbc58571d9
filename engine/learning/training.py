"""One training step of an EAGLE-3 head, and how well it agrees with texts before it.

Texts are unrolled over the head's own outputs, as it drafts in service: step 0 reads the target's
features, later steps the head's output of the step before (Li et al., "EAGLE-3", 2025,
training-time test). At step k row j reads token j + 1 + k and predicts token j + 2 + k.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from engine.cpu.prepack import has_bf16_products
from engine.drafters.eagle3_head import Eagle3Head
from engine.hidden_states import as_tensor
from engine.learning.lessons import Lesson, LessonMemory
from engine.learning.muon import Muon
from policies.learning.judging import Agreement

DEPTH = 4
"""Steps of a chain, in training and in judging."""
LATER_STEPS = 0.8
"""Weight of each step in the loss against the one before."""
_LR = 0.01
_WEIGHT_DECAY = 0.01
_AVERAGE = 0.97
"""The averaged weights keep so much of themselves in a step."""
_NO_TOKEN = -1
_NOT_COUNTED = -100
"""cross_entropy's own mark."""


def fast_products(device: str = "cpu") -> torch.autocast:
    """Autocast to bf16 if the processor multiplies it; otherwise fp32 takes a fifth of its time."""
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu" or has_bf16_products())


class _Texts(NamedTuple):
    """Lessons with their rows one after the other."""

    read: Tensor
    """[rows]: the token of each at step 0."""
    features: Tensor
    positions: Tensor
    counts: list[int]
    """Rows of each text."""
    firsts: list[int]
    """By text, the first row that predicts a token of the answer."""
    ahead: Tensor
    """[rows of answers, 1 + DEPTH]: the token that each reads and those after it, or _NO_TOKEN."""


def _texts(lessons: Sequence[Lesson], device: torch.device) -> _Texts:
    read, ahead, features, positions = [], [], [], []
    for lesson in lessons:
        tokens = torch.as_tensor(lesson.tokens, dtype=torch.int64)
        rows, first = lesson.rows, lesson.first_row
        read.append(tokens[1 : 1 + rows])
        features.append(as_tensor(lesson.features[:rows]))
        positions.append(torch.arange(rows))
        beyond = torch.full((DEPTH,), _NO_TOKEN)
        windows = torch.cat([tokens[1 + first :], beyond]).unfold(0, 1 + DEPTH, 1)
        ahead.append(windows[: rows - first])
    return _Texts(
        torch.cat(read).to(device),
        torch.cat(features).to(device),
        torch.cat(positions).to(device),
        [lesson.rows for lesson in lessons],
        [lesson.first_row for lesson in lessons],
        torch.cat(ahead).to(device),
    )


class _UnrolledAttention:
    """A row sees the rows of step 0 up to its own, and of later steps its own alone."""

    def __init__(self, texts: _Texts) -> None:
        self._counts, self._firsts = texts.counts, texts.firsts
        self._answered = [
            count - first for count, first in zip(texts.counts, texts.firsts, strict=True)
        ]
        self._own: list[tuple[Tensor, Tensor]] = []
        """Keys and values of the answers' rows at later steps."""

    def first(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._keys, self._values = keys.split(self._counts), values.split(self._counts)
        mixed = [
            scaled_dot_product_attention(
                own.transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                is_causal=True,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for own, keys, values in zip(
                query.split(self._counts), self._keys, self._values, strict=True
            )
        ]
        return torch.cat(mixed)

    def later(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        _, heads, width = query.shape
        groups = heads // keys.shape[1]
        self._own.append((keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)))
        own_scores = torch.stack([(query * some).sum(-1) for some, _ in self._own], -1)
        own_values = torch.stack([some for _, some in self._own], -2)
        mixed = []
        for number, (asks, scores) in enumerate(
            zip(query.split(self._answered), own_scores.split(self._answered), strict=True)
        ):
            seen = self._keys[number].repeat_interleave(groups, 1)
            shown = self._values[number].repeat_interleave(groups, 1)
            count, first = self._counts[number], self._firsts[number]
            hidden = torch.ones(len(asks), count, dtype=torch.bool, device=query.device)
            committed = torch.einsum("rhd,chd->rhc", asks, seen)
            committed = committed.masked_fill(hidden.triu(first + 1)[:, None], -torch.inf)
            shares = torch.cat([committed, scores], -1).mul(width**-0.5).softmax(-1)
            shares = shares.to(shown.dtype)
            mixed.append(torch.einsum("rhc,chd->rhd", shares[..., :count], shown))
            part = own_values[sum(self._answered[:number]) :][: len(asks)]
            mixed[-1] = mixed[-1] + torch.einsum("rhs,rhsd->rhd", shares[..., count:], part)
        return torch.cat(mixed)


def _unrolled(head: Eagle3Head, texts: _Texts) -> Iterable[Tensor]:
    """Each step's logits of the answers' rows."""
    attention = _UnrolledAttention(texts)
    hidden = head(texts.read, head.fuse(texts.features), texts.positions, attention.first)
    ends = np.cumsum(texts.counts)
    answers = torch.cat(
        [
            torch.arange(end - count + first, end, device=hidden.device)
            for end, count, first in zip(ends, texts.counts, texts.firsts, strict=True)
        ]
    )
    hidden, positions = hidden[answers], texts.positions[answers]
    yield head.logits(hidden)
    for step in range(1, DEPTH):
        read = texts.ahead[:, step].clamp(min=0)
        hidden = head(read, hidden, positions + step, attention.later)
        yield head.logits(hidden)


def loss_of(head: Eagle3Head, lessons: Sequence[Lesson]) -> Tensor:
    """Cross-entropy of the answers' tokens that are in the head's vocabulary."""
    target_ids = head.vocabulary.target_ids
    texts = _texts(lessons, target_ids.device)
    wanted = texts.ahead[:, 1:]
    places = torch.searchsorted(target_ids, wanted.clamp(min=0)).clamp(max=len(target_ids) - 1)
    places = places.where(target_ids[places] == wanted, _NOT_COUNTED)
    total = torch.zeros((), device=target_ids.device)
    with fast_products(target_ids.device.type):
        for step, logits in enumerate(_unrolled(head, texts)):
            if (places[:, step] != _NOT_COUNTED).any():
                total = total + LATER_STEPS**step * cross_entropy(logits, places[:, step])
    return total / sum(LATER_STEPS**step for step in range(DEPTH))


@torch.no_grad()
def agreements(head: Eagle3Head, lessons: Sequence[Lesson]) -> list[Agreement]:
    """By lesson, what greedy chains would achieve if the target accepts exactly its text."""
    target_ids = head.vocabulary.target_ids
    texts = _texts(lessons, target_ids.device)
    with fast_products(target_ids.device.type):
        chosen = [target_ids[logits.argmax(-1)] for logits in _unrolled(head, texts)]
    right = torch.stack(chosen, 1) == texts.ahead[:, 1:]
    accepted = right.long().cumprod(1).sum(1).cpu().numpy()
    ends = np.cumsum([lesson.answered for lesson in lessons])
    # The first row predicts the token that comes with the prompt, for which nothing is drafted.
    return [walk(one[1:]) for one in np.split(accepted, ends[:-1])]


def walk(accepted: NDArray[np.int64]) -> Agreement:
    """`accepted`: by place of the last committed token, how many drafted tokens after it are right.
    The tokens after the first one, and the forwards that commit them."""
    at = forwards = 0
    while at < len(accepted):
        at += int(accepted[at]) + 1
        forwards += 1
    return Agreement(len(accepted), forwards)


def twin(head: Eagle3Head) -> Eagle3Head:
    """A copy that shares what is not learned."""
    shared = [head.embed_tokens, head.lm_head, head.rotary, head.vocabulary]
    copied: Eagle3Head = deepcopy(head, {id(one): one for one in shared})
    return copied.requires_grad_(False)


@torch.no_grad()
def load_learned(head: Eagle3Head, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError where names or shapes are others."""
    own = dict(head.learned())
    if {name: weight.shape for name, weight in weights.items()} != {
        name: weight.shape for name, weight in own.items()
    }:
        raise ValueError("the weights are another head's")
    for name, weight in own.items():
        weight.copy_(weights[name])


class Learner:
    """Trains a copy of a head; what is judged and served is the average of its weights."""

    def __init__(self, head: Eagle3Head, memory_tokens: int) -> None:
        """`head`: with float32 weights that are not packed (Eagle3Head.load, `trainable`).
        `memory_tokens`: of earlier lessons, of which it repeats some."""
        self._head, self.averaged, self._served = head, twin(head), twin(head)
        self._learned = dict(head.learned())
        self._muon = Muon(self._learned.values(), lr=_LR, weight_decay=_WEIGHT_DECAY)
        self._earlier = LessonMemory(memory_tokens, random.Random(0))
        self.tokens = 0
        """Answer tokens that it has learned from."""

    def learn(self, lessons: Sequence[Lesson]) -> list[tuple[Agreement, Agreement]]:
        """What the served version and the average achieve on lessons that neither has seen; then
        one step on them and one on earlier ones."""
        judged = zip(
            agreements(self._served, lessons), agreements(self.averaged, lessons), strict=True
        )
        pairs = list(judged)
        answered = sum(lesson.answered for lesson in lessons)
        self._step(lessons)
        if earlier := self._earlier.sample(answered):
            self._step(earlier)
        for lesson in lessons:
            self._earlier.add(lesson)
        self.tokens += answered
        return pairs

    def weights(self) -> dict[str, Tensor]:
        """The average, as it is served and kept."""
        return {name: weight.bfloat16().cpu() for name, weight in self.averaged.learned()}

    def compare_with(self, served: Mapping[str, Tensor]) -> None:
        """From now on the served version has these weights."""
        load_learned(self._served, served)

    def go_on_from(self, weights: Mapping[str, Tensor]) -> None:
        for head in (self._head, self.averaged):
            load_learned(head, weights)

    def _step(self, lessons: Sequence[Lesson]) -> None:
        for weight in self._learned.values():
            weight.requires_grad_(True)
        loss = loss_of(self._head, lessons)
        if not loss.requires_grad or not loss.isfinite():
            return  # no token of the head's vocabulary, or states that overflowed
        loss.backward()
        gradients = [one.grad for one in self._learned.values() if one.grad is not None]
        if all(bool(one.isfinite().all()) for one in gradients):
            self._muon.step()
        self._muon.zero_grad()
        for name, average in self.averaged.learned():
            average.lerp_(self._learned[name].detach(), 1 - _AVERAGE)

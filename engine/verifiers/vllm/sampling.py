"""What takes the place of vLLM's sampler and rejection sampler in its workers (DESIGN 4.1).

Every rank computes the same tokens from the same gathered logits, so none is broadcast.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.protocol import Start, TokenLogprobs
from engine.sampling.sampler import Row, choose, logprobs

FAILED = -2
"""In place of a token: none could be chosen for this request. vLLM hands it on as it is."""
_LOG = logging.getLogger("spindle")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of the sampler. It rides to the workers in vLLM's `extra_args`."""

    start: Start
    score: tuple[int, ...] = ()
    """Report the logits of these tokens instead of choosing one (Verifier.score)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a step: its rows of logits stand behind the last committed token and
    behind each token of its draft."""

    name: str
    wish: Wish
    first_row: int
    position: int
    """Committed tokens, which is the absolute index of the first token to choose."""
    history: Sequence[int]
    """The committed tokens where penalties need them."""
    draft: Sequence[int]


@dataclass(frozen=True, slots=True)
class Said:
    tokens: tuple[int, ...]
    """The accepted draft tokens and then the target's own."""
    reported: tuple[TokenLogprobs, ...] | None = None
    """For each token; of a `score`, the logits as the `top` of its single token."""


def decide(logits: Tensor, requests: Sequence[Asked]) -> list[Said]:
    """The target's own tokens, as far as each draft agrees with them and one beyond; FAILED where
    that raises. Out of here an error would end vLLM, and be every request's."""
    try:
        return _decided(logits, requests)
    except Exception:
        return [_decided_alone(logits, one) for one in requests]


def _decided_alone(logits: Tensor, request: Asked) -> Said:
    try:
        (said,) = _decided(logits, [request])
    except Exception:
        _LOG.exception("request %s fails and is given up here", request.name)
        return Said((FAILED,))
    return said


def _decided(logits: Tensor, requests: Sequence[Asked]) -> list[Said]:
    choosing = [one for one in requests if not one.wish.score]
    rows = [row for one in choosing for row in _rows(one)]
    wanted = [one.first_row + step for one in choosing for step in range(len(one.draft) + 1)]
    chosen = choose(logits if len(wanted) == len(logits) else logits[wanted], rows) if rows else []
    said = []
    taken = 0
    for one in requests:
        if one.wish.score:
            said.append(_score(logits[one.first_row], one.wish.score))
            continue
        end = taken + len(one.draft) + 1
        said.append(_follow(logits, one, chosen[taken:end]))
        taken = end
    return said


def _rows(one: Asked) -> list[Row]:
    start, draft = one.wish.start, tuple(one.draft)
    return [
        Row(
            start.params,
            start.seed,
            one.position + step,
            start.prompt_len,
            one.history,
            draft[:step],
        )
        for step in range(len(draft) + 1)
    ]


def _follow(logits: Tensor, one: Asked, chosen: Sequence[int]) -> Said:
    agreed = 0
    while agreed < len(one.draft) and one.draft[agreed] == chosen[agreed]:
        agreed += 1
    tokens = tuple(chosen[: agreed + 1])
    top_n = one.wish.start.params.logprobs
    if top_n is None:
        return Said(tokens)
    reported = tuple(
        logprobs(logits[one.first_row + step], token, top_n) for step, token in enumerate(tokens)
    )
    return Said(tokens, reported)


def _score(row: Tensor, token_ids: Sequence[int]) -> Said:
    values = row[list(token_ids)].float().tolist()
    return Said((0,), (TokenLogprobs(0.0, tuple(zip(token_ids, values, strict=True))),))

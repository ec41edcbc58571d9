"""Replaces vLLM's sampler and rejection sampler in its workers by drafter-invariant sampling.

Every rank chooses the same tokens from the same gathered logits, so none is broadcast. Why the
output cannot depend on the draft: docs/architecture.md, "Drafter-invariant sampling".
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.protocol import Start, TokenLogprobs
from engine.sampling.sampler import Row, choose, logprobs

SAMPLER_INPUT = "spindle"
"""The key of a request's SamplerInput in `extra_args`."""
FAILED = -2
"""In place of a token: none could be chosen for this request. vLLM hands it on as it is."""
_LOG = logging.getLogger("spindle")


@dataclass(frozen=True, slots=True)
class SamplerInput:
    """A request's input to our sampler, passed to the workers in vLLM's `extra_args`."""

    start: Start
    score: tuple[int, ...] = ()
    """Return the logits of these tokens instead of choosing one (Verifier.score)."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One request of a step; it has a row of logits after its last committed token and after
    each token of its draft."""

    name: str
    sampler_input: SamplerInput
    first_row: int
    position: int
    """The number of committed tokens, which is the absolute index of the first token to choose."""
    history: Sequence[int]
    """The committed tokens if penalties need them, else empty."""
    draft: Sequence[int]
    allowed: Sequence[NDArray[np.int32] | None] | None = None
    """Row.allowed of each row, for a request with a grammar."""


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    tokens: tuple[int, ...]
    """The accepted draft tokens, then the target's own."""
    reported: tuple[TokenLogprobs, ...] | None = None
    """Log-probabilities per token; for a `score`, the logits as the `top` of its single token."""


def choose_tokens(logits: Tensor, requests: Sequence[StepRequest]) -> list[ChosenTokens]:
    """The target's own tokens, as far as each draft agrees with them and one beyond; FAILED for a
    request for which that raises. An error raised here would end vLLM, and every request with
    it."""
    try:
        return _choose_tokens(logits, requests)
    except Exception:
        return [_choose_alone(logits, one) for one in requests]


def _choose_alone(logits: Tensor, request: StepRequest) -> ChosenTokens:
    try:
        (chosen,) = _choose_tokens(logits, [request])
    except Exception:
        _LOG.exception("request %s fails alone", request.name)
        return ChosenTokens((FAILED,))
    return chosen


def _choose_tokens(logits: Tensor, requests: Sequence[StepRequest]) -> list[ChosenTokens]:
    choosing = [one for one in requests if not one.sampler_input.score]
    rows = [row for one in choosing for row in _rows(one)]
    wanted = [one.first_row + step for one in choosing for step in range(len(one.draft) + 1)]
    chosen = choose(logits if len(wanted) == len(logits) else logits[wanted], rows) if rows else []
    results = []
    first = 0
    for one in requests:
        if one.sampler_input.score:
            results.append(_score(logits[one.first_row], one.sampler_input.score))
            continue
        end = first + len(one.draft) + 1
        results.append(_accept(logits, one, chosen[first:end]))
        first = end
    return results


def _rows(one: StepRequest) -> list[Row]:
    start, draft = one.sampler_input.start, tuple(one.draft)
    return [
        Row(
            start.params,
            start.seed,
            one.position + step,
            start.prompt_len,
            one.history,
            draft[:step],
            None if one.allowed is None else one.allowed[step],
        )
        for step in range(len(draft) + 1)
    ]


def _accept(logits: Tensor, one: StepRequest, chosen: Sequence[int]) -> ChosenTokens:
    accepted = 0
    while accepted < len(one.draft) and one.draft[accepted] == chosen[accepted]:
        accepted += 1
    tokens = tuple(chosen[: accepted + 1])
    top_n = one.sampler_input.start.params.logprobs
    if top_n is None:
        return ChosenTokens(tokens)
    reported = tuple(
        logprobs(logits[one.first_row + step], token, top_n) for step, token in enumerate(tokens)
    )
    return ChosenTokens(tokens, reported)


def _score(row: Tensor, token_ids: Sequence[int]) -> ChosenTokens:
    values = row[list(token_ids)].float().tolist()
    return ChosenTokens((0,), (TokenLogprobs(0.0, tuple(zip(token_ids, values, strict=True))),))

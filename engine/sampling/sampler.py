"""Drafter-invariant sampling: a token is a function of logits, parameters, seed and position.

Transforms are applied in vLLM's order: grammar, logit bias, min_tokens, penalties, temperature,
min-p, top-k, top-p; then Gumbel noise and argmax, ties to the lowest id. Target and drafters apply
the same ones, and a draft token is accepted exactly when it is the target's own
(docs/architecture.md, "Drafter-invariant sampling").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.protocol import TokenLogprobs
from engine.sampling.cpu_kernels import RowParams, allow_only, perturbed_top_rows
from engine.sampling.noise import split_seed
from engine.sampling.params import SamplingParams
from engine.sampling.torch_kernels import allow_only_torch, perturbed_top_torch
from engine.sampling.vocabulary import ALL_TOKENS, ReducedVocabulary

_LISTED_ROWS = 64
"""Rows whose log-probabilities are computed at once, which bounds the memory that they take."""


@dataclass(frozen=True, slots=True)
class Row:
    """One position at which a token is chosen."""

    params: SamplingParams
    seed: int
    position: int
    """Absolute index, in prompt and output, of the token being chosen."""
    prompt_len: int
    history: Sequence[int]
    """Committed tokens, read only for penalties; those from prompt_len on are output."""
    path: tuple[int, ...] = ()
    """Draft tokens between the history and this position; they count as output."""
    allowed: NDArray[np.int32] | None = None
    """One bit for each token: the tokens that the request's grammar allows here
    (engine/grammar/matcher.py). None: all."""

    @property
    def changes_logits(self) -> bool:
        """Whether `adjust` has anything to do."""
        params = self.params
        return (
            self.allowed is not None
            or bool(params.logit_bias)
            or params.has_penalties
            or self.forbids_stops
        )

    @property
    def forbids_stops(self) -> bool:
        """Whether the output is too short to end here; a grammar's own mask forbids stop tokens."""
        params = self.params
        too_short = self.position - self.prompt_len < params.min_tokens
        return too_short and bool(params.stop_token_ids) and params.grammar is None


def choose(
    logits: Tensor, rows: Sequence[Row], reduced: ReducedVocabulary | None = None
) -> list[int]:
    """The token at each row of `logits` [rows, columns]. `reduced`: what the columns are, if not
    all of the vocabulary."""
    adjusted, columns = _adjusted(logits, rows, reduced)
    if all(row.params.temperature == 0 for row in rows):
        # numpy's argmax is ten times as fast as torch's on a CPU; both return the lowest index of
        # equal values.
        greedy = adjusted.numpy() if adjusted.device.type == "cpu" else adjusted
        best = greedy.argmax(-1).tolist()
        return best if columns is None else columns.names[best].tolist()
    tokens, _ = _perturbed_top(adjusted, rows, 1, columns, with_confidence=False)
    chosen = tokens[:, 0].tolist()
    if min(chosen) < 0:
        raise ValueError("no token can be chosen: a row of logits holds no number above -inf")
    return chosen


def candidates(
    logits: Tensor, rows: Sequence[Row], width: int, reduced: ReducedVocabulary | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """For each row the `width` tokens with the highest perturbed scores, best first, and their raw
    confidences: softmax over logit + T·noise, so siblings sum to at most 1. If filters leave fewer
    tokens, the rest are -1 with confidence 0."""
    adjusted, columns = _adjusted(logits, rows, reduced)
    return _perturbed_top(adjusted, rows, width, columns, with_confidence=True)


def logprobs(logits_row: Tensor, token: int, top_n: int) -> TokenLogprobs:
    """Log-probabilities under the model's own distribution, before any transform."""
    return logprobs_of_rows(logits_row[None], [token], top_n)[0]


def logprobs_of_rows(
    logits: Tensor, tokens: Sequence[int], top_n: int
) -> tuple[TokenLogprobs, ...]:
    """Like `logprobs`, for one token per row of `logits`."""
    listed: list[TokenLogprobs] = []
    for first in range(0, len(tokens), _LISTED_ROWS):
        scores = torch.log_softmax(logits[first : first + _LISTED_ROWS].float(), -1)
        chosen = torch.tensor(tokens[first : first + _LISTED_ROWS], device=scores.device)[:, None]
        own, best = scores.gather(-1, chosen)[:, 0], scores.topk(top_n)
        rows = zip(own.tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
        listed += [
            TokenLogprobs(value, tuple(zip(ids, values, strict=True)))
            for value, ids, values in rows
        ]
    return tuple(listed)


def _adjusted(
    logits: Tensor, rows: Sequence[Row], reduced: ReducedVocabulary | None
) -> tuple[Tensor, ReducedVocabulary | None]:
    """Adjusted logits and what their columns are: transforms name any of the target's tokens."""
    if reduced is None:
        return adjust(logits, rows), None
    if any(row.changes_logits for row in rows):
        return adjust(reduced.widened(logits), rows), None
    return logits.float(), reduced


def _perturbed_top(
    adjusted: Tensor,
    rows: Sequence[Row],
    width: int,
    reduced: ReducedVocabulary | None,
    *,
    with_confidence: bool,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if adjusted.device.type != "cpu":
        ids = None if reduced is None else reduced.target_ids
        return perturbed_top_torch(adjusted, row_params(rows), width, ids)
    names = ALL_TOKENS if reduced is None else reduced.names
    tokens = np.empty((len(rows), width), np.int32)
    confidence = np.empty((len(rows), width if with_confidence else 0), np.float32)
    perturbed_top_rows(adjusted.contiguous().numpy(), names, row_params(rows), tokens, confidence)
    return tokens, confidence


def row_params(rows: Sequence[Row]) -> RowParams:
    """The rows' parameters as arrays, for the kernels."""
    seeds = [split_seed(row.seed) for row in rows]
    return RowParams(
        temperature=np.array([row.params.temperature for row in rows], np.float32),
        top_k=np.array([row.params.top_k for row in rows], np.int64),
        top_p=np.array([row.params.top_p for row in rows], np.float64),
        min_p=np.array([row.params.min_p for row in rows], np.float64),
        seed_low=np.array([low for low, _ in seeds], np.int64),
        seed_high=np.array([high for _, high in seeds], np.int64),
        position=np.array([row.position for row in rows], np.int64),
    )


def adjust(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """fp32 logits after grammar, bias, min_tokens and penalties; the argument is not changed."""
    adjusted = logits.float()
    constrained = [(i, row) for i, row in enumerate(rows) if row.allowed is not None]
    biased = [(i, row) for i, row in enumerate(rows) if row.params.logit_bias]
    unstoppable = [(i, row) for i, row in enumerate(rows) if row.forbids_stops]
    penalised = [(i, row) for i, row in enumerate(rows) if row.params.has_penalties]
    if (constrained or biased or unstoppable or penalised) and adjusted is logits:
        adjusted = logits.clone()
    if constrained:
        _allow_only(adjusted, constrained)
    if biased:
        _add_bias(adjusted, biased)
    if unstoppable:
        _forbid_stop_tokens(adjusted, unstoppable)
    if penalised:
        _penalise(adjusted, penalised)
    return adjusted


NumberedRows = Sequence[tuple[int, Row]]


def _allow_only(logits: Tensor, rows: NumberedRows) -> None:
    words = np.stack([row.allowed for _, row in rows if row.allowed is not None])
    places = np.array([i for i, _ in rows])
    if logits.device.type == "cpu":
        allow_only(logits.numpy(), places, words)
    else:
        allow_only_torch(logits, places, words)


def _add_bias(logits: Tensor, rows: NumberedRows) -> None:
    at = _places(logits, [(i, list(row.params.logit_bias)) for i, row in rows])
    bias = [value for _, row in rows for value in row.params.logit_bias.values()]
    logits[at] += torch.tensor(bias, dtype=logits.dtype, device=logits.device)


def _forbid_stop_tokens(logits: Tensor, rows: NumberedRows) -> None:
    logits[_places(logits, [(i, row.params.stop_token_ids) for i, row in rows])] = -torch.inf


def _penalise(logits: Tensor, rows: NumberedRows) -> None:
    """Repetition penalty over prompt and output, then frequency and presence penalties over the
    output."""
    # The nodes of a tree share their history, whose tokens are counted only once.
    counted: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    seen, repetition, lowering = [], [], []
    for i, row in rows:
        key = (id(row.history), row.prompt_len)
        if key not in counted:
            counted[key] = _count(np.asarray(row.history, np.int64), row.prompt_len)
        ids, counts = _count_path(*counted[key], row.path)
        params = row.params
        seen.append((i, ids.tolist()))
        repetition.append(np.full(len(ids), params.repetition_penalty))
        lowering.append(params.frequency_penalty * counts + params.presence_penalty * (counts > 0))
    at = _places(logits, seen)
    divisor, lowered = (
        torch.from_numpy(np.concatenate(values)).to(logits) for values in (repetition, lowering)
    )
    scores = logits[at]
    logits[at] = torch.where(scores > 0, scores / divisor, scores * divisor) - lowered


def _count(
    history: NDArray[np.int64], prompt_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct tokens of prompt and output, and how often each occurs in the output."""
    ids, index = np.unique(history, return_inverse=True)
    return ids, np.bincount(index[prompt_len:], minlength=len(ids))


def _count_path(
    ids: NDArray[np.int64], counts: NDArray[np.int64], path: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    with_path, index = np.unique(np.append(ids, np.array(path, np.int64)), return_inverse=True)
    totals = np.bincount(index, weights=np.append(counts, np.ones(len(path))))
    return with_path, totals.astype(np.int64)


def _places(logits: Tensor, tokens: Sequence[tuple[int, Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Index tensors of (row, tokens) pairs."""
    row_ids = [i for i, ids in tokens for _ in ids]
    token_ids = [token for _, ids in tokens for token in ids]
    places = torch.tensor([row_ids, token_ids], dtype=torch.long, device=logits.device)
    return places[0], places[1]

"""The comparison of streams with the reference: equal except for excused near-ties (grade F)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedModel

from benchmarks.generation import Rejected
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from tests import reference
from tests.engine.grammar.oracle import allowed_by

NEAR_TIE = 1e-4
TOKENS_PER_EXCUSE = 20_000


@dataclass(slots=True)
class Identity:
    """Compares streams with one reference model and counts the near-ties it excuses."""

    model: PreTrainedModel
    tokens: int = 0
    excused: int = 0

    def check(
        self, prompt: Sequence[int], stream: Sequence[int], params: SamplingParams, seed: int
    ) -> None:
        """`params` must name every stop token. An excused divergence ends the comparison.

        One forward over the whole stream replaces token-by-token generation, as both are equal up
        to the first difference, which is then recomputed alone.
        """
        tokens = [*prompt, *stream]
        logits = reference.forward(self.model, tokens)
        for position in range(len(prompt), len(tokens)):
            before = tokens[:position]
            scores = _scores(logits[position - 1], before, len(prompt), params, seed)
            self.tokens += 1
            if tokens[position] != scores.argmax():
                self._excuse(before, len(prompt), tokens[position], params, seed)
                return
        stops = [i for i, token in enumerate(stream) if token in params.stop_token_ids]
        end = stops[0] + 1 if stops else params.max_tokens
        assert len(stream) == end, f"the stream has {len(stream)} tokens, not {end}"

    def _excuse(
        self, before: list[int], prompt_len: int, token: int, params: SamplingParams, seed: int
    ) -> None:
        """Excuses a token whose score is within NEAR_TIE of the best one."""
        logits = reference.forward(self.model, before)[-1]
        scores = _scores(logits, before, prompt_len, params, seed)
        expected = int(scores.argmax())
        shortfall = scores[expected] - scores[token]
        assert shortfall < NEAR_TIE, (
            f"output token {len(before) - prompt_len} is {token}, the reference says {expected} "
            f"by {shortfall:.2e}"
        )
        self.excused += 1

    def finish(self) -> None:
        """Asserts, after the last stream, that few enough near-ties were excused."""
        assert self.tokens, "nothing was compared"
        assert self.excused * TOKENS_PER_EXCUSE <= self.tokens, (
            f"{self.excused} near-ties excused in {self.tokens} tokens"
        )


def assert_identical(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    streams: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
) -> None:
    """`params`: those of each request, with its seed."""
    identity = Identity(model)
    for prompt, stream, own in zip(prompts, streams, params, strict=True):
        identity.check(prompt, stream, own, own.seed or 0)
    identity.finish()


def joined(events: Iterable[Commit | Rejected], requests: int) -> tuple[list[list[int]], int]:
    """The stream of each request that `generate` serves, and the number of all commits."""
    streams: list[list[int]] = [[] for _ in range(requests)]
    commits = 0
    for event in events:
        assert isinstance(event, Commit)
        assert event.first_index == len(streams[int(event.request)])
        streams[int(event.request)] += event.token_ids
        commits += 1
    return streams, commits


def _scores(
    logits: reference.Scores, before: list[int], prompt_len: int, params: SamplingParams, seed: int
) -> reference.Scores:
    """The reference's scores of all tokens after `before`, or of those that a grammar allows."""
    if params.grammar is not None:
        allowed = allowed_by(params)(before[prompt_len:])
        logits = np.where(allowed, logits, -np.inf)
        params = replace(params, min_tokens=0)  # which the grammar's oracle has seen to
    return reference.perturbed(logits, before, prompt_len, params, seed)

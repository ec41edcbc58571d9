"""The verifier on vLLM: verifies chains; each order becomes one request's turn in vLLM's next step.

vLLM holds the KV and computes the target's tokens. This module keeps the committed tokens from the
orders, as every host does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfBlocks
from engine.grammar.compiler import Grammars
from engine.grammar.gate import GrammarGate, Ready, affordable, forced_tokens
from engine.kv.blocks import KvState
from engine.protocol import Failed, Missing, NoRoom, Start, Verdict, VerifyOrder
from engine.sampling.params import SamplingParams
from engine.scopes import INTERNAL
from engine.soft_state import HeldRequest, SoftState
from engine.verifiers.vllm.adapter.core import Outcome, StepEngine
from engine.verifiers.vllm.adapter.scheduler import Turn
from engine.verifiers.vllm.loading import TYPICAL_DRAFT
from engine.verifiers.vllm.sampling import FAILED, SamplerInput

MAX_REQUESTS = 4096
"""Requests whose tokens are kept; their KV is bounded by vLLM's pool."""
SCORE_CHUNK = 512
"""Prompt tokens per step of `score`."""


@dataclass(slots=True)
class _VllmRequest:
    """What vLLM holds of a request."""

    name: str
    """Its name in vLLM, never used twice, so that results for an earlier instance are never
    mistaken for its own."""
    length: int
    """Number of its tokens in vLLM."""


class VllmVerifier:
    def __init__(
        self,
        engine: StepEngine,
        stop_token_ids: tuple[int, ...],
        grammars: Grammars | None = None,
    ) -> None:
        """`grammars`: None: requests with a grammar are refused at admission."""
        self.grammars = grammars
        self._engine = engine
        self._gate = GrammarGate(grammars)
        self._stop_token_ids = stop_token_ids
        self._state = SoftState(MAX_REQUESTS, on_drop=self._release)
        self._in_vllm: dict[str, _VllmRequest] = {}
        """By request."""
        self._opened = count()

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    @property
    def verifies_trees(self) -> bool:
        return False

    @property
    def follows_grammars(self) -> bool:
        return self._gate.follows_grammars

    @property
    def version(self) -> str:
        return self._engine.version

    @property
    def device(self) -> str:
        return self._engine.device

    @property
    def block_size(self) -> int:
        return self._engine.block_size

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        for order in orders:
            if not order.tree.is_chain:
                raise ValueError("vLLM verifies chains, and was given a tree that branches")
        states = self._state.accept([order.prefix for order in orders])
        passed = self._gate.pass_ready(orders, states)
        self.forget([one.request for one in passed if isinstance(one, Failed)])
        orders = [
            affordable(order, one) if isinstance(one, Ready) else order
            for order, one in zip(orders, passed, strict=True)
        ]
        turns = {}
        for order, one in zip(orders, passed, strict=True):
            if isinstance(one, Ready):
                name, draft = self._vllm_request(order, one.held), order.tree.tokens.tolist()
                # vLLM takes tokens that it has not chosen as a draft only.
                forced = forced_tokens(one, draft, reserved=1)
                draft += forced[: max(0, TYPICAL_DRAFT - len(draft))]
                turns[name] = Turn(draft, order.chunk, _allowed(one, draft), order.features)
        outcomes = self._engine.step(turns)
        return [
            self._answer(order, one.held, outcomes) if isinstance(one, Ready) else one
            for order, one in zip(orders, passed, strict=True)
        ]

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after a prompt; raises OutOfBlocks when requests being served fill the pool."""
        name = f"score-{next(self._opened)}"
        start = Start(SamplingParams(temperature=0), 0, len(prompt), INTERNAL)
        self._engine.open(name, prompt, SamplerInput(start, score=tuple(token_ids)))
        try:
            while True:
                outcome = self._engine.step({name: Turn(chunk=SCORE_CHUNK)}).get(name)
                if outcome is None:
                    blocks = self._engine.blocks()
                    raise OutOfBlocks(blocks.total, blocks.free + blocks.cached)
                if outcome.reported is not None:
                    return np.array([value for _, value in outcome.reported[0].top], np.float32)
        finally:
            self._engine.close([name])

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        """Removes these requests from vLLM; the next orders open them again, mostly from its prefix
        cache."""
        for request in requests:
            self._close(request)

    def blocks(self) -> KvState:
        """The state of vLLM's KV pool; no block is used after the last request has left."""
        return self._engine.blocks()

    def shutdown(self) -> None:
        """Ends vLLM and its workers; the verifier cannot be used afterwards."""
        self._engine.shutdown()

    def _release(self, request: str, _held: HeldRequest) -> None:
        self._close(request)
        self._gate.forget([request])

    def _close(self, request: str) -> None:
        in_vllm = self._in_vllm.pop(request, None)
        if in_vllm is not None:
            self._engine.close([in_vllm.name])

    def _vllm_request(self, order: VerifyOrder, held: HeldRequest) -> str:
        """The name of a vLLM request that has exactly the committed tokens."""
        request, tokens = order.prefix.request, held.committed.ids
        in_vllm = self._in_vllm.get(request)
        if in_vllm is not None and in_vllm.length == len(tokens) <= held.unchanged:
            return in_vllm.name
        # The request is new, or its tokens are not those of the last verdict: open it again in
        # vLLM, whose prefix cache has most of its tokens.
        self._close(request)
        in_vllm = _VllmRequest(f"{request}#{next(self._opened)}", len(tokens))
        requested = order.prompt_logprobs_from is not None
        top_n = held.start.params.prompt_logprobs if requested else None
        self._engine.open(in_vllm.name, tokens, SamplerInput(held.start), top_n)
        self._in_vllm[request] = in_vllm
        return in_vllm.name

    def _answer(
        self, order: VerifyOrder, held: HeldRequest, outcomes: dict[str, Outcome]
    ) -> Verdict | NoRoom | Failed:
        prefix = order.prefix
        in_vllm = self._in_vllm[prefix.request]
        outcome = outcomes.get(in_vllm.name)
        if outcome is None:
            return NoRoom(prefix.request, prefix.attempt, prefix.round)
        if FAILED in outcome.tokens:
            self.forget([prefix.request])
            return Failed(prefix.request, prefix.attempt, prefix.round)
        held.committed.extend(outcome.tokens)
        in_vllm.length += len(outcome.tokens)
        if outcome.finished:
            del self._in_vllm[prefix.request]
        # vLLM returns all of them at the end of the prefill.
        first = order.prompt_logprobs_from
        prompt_logprobs = () if first is None else outcome.prompt[first - 1 :]
        return Verdict(
            prefix.request,
            prefix.attempt,
            prefix.round,
            accepted=tuple(range(min(len(outcome.tokens) - 1, len(order.tree)))),
            tokens=outcome.tokens,
            pending=outcome.pending,
            logprobs=outcome.reported,
            prompt_logprobs=prompt_logprobs,
            cached=outcome.cached,
            features=outcome.features,
        )


def _allowed(ready: Ready, draft: Sequence[int]) -> list[NDArray[np.int32] | None] | None:
    """Turn.allowed."""
    if ready.matcher is None:
        return None
    return [ready.matcher.allowed(draft[:end]) for end in range(len(draft) + 1)]

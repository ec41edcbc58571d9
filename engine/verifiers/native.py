"""The native verifier: one packed forward of the target over draft trees, single tokens and prefill
chunks.

At each tree node it chooses the target's own token with the request's noise, and follows the draft
as far as both agree (docs/architecture.md, "Drafter-invariant sampling"). Only the accepted path
stays in the KV.
"""

from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import OutOfBlocks
from engine.grammar.compiler import Grammars
from engine.grammar.gate import GrammarGate, Ready, affordable, forced_tokens
from engine.hidden_states import HiddenStates
from engine.kv.blocks import KvState
from engine.model import PackedModel, Segment
from engine.protocol import Failed, Missing, NoRoom, TokenLogprobs, Verdict, VerifyOrder
from engine.sampling.sampler import Row, choose, logprobs
from engine.scopes import INTERNAL
from engine.soft_state import HeldRequest, SoftState
from engine.verifiers.native_work import (
    Work,
    features_of,
    prompt_logprobs_of,
    requested_states,
    tree_mask,
)
from policies.tree import ROOT, DraftTree

MAX_REQUESTS = 4096
"""Requests whose tokens are kept; their KV is bounded by the model's pool."""
SCORE_CHUNK = 512
"""Prompt tokens per forward of `score`, which bounds its memory."""


class NativeVerifier:
    def __init__(self, model: PackedModel, grammars: Grammars | None = None) -> None:
        """`grammars`: None: requests with a grammar are refused at admission."""
        self._model = model
        self._gate = GrammarGate(grammars)
        self._state = SoftState(MAX_REQUESTS, on_drop=self._release)
        self._scored = count()

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_context(self) -> int:
        return min(self._model.max_context, self._model.kv.capacity)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._model.stop_token_ids

    @property
    def verifies_trees(self) -> bool:
        return True

    @property
    def follows_grammars(self) -> bool:
        return self._gate.follows_grammars

    def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        states = self._state.accept([order.prefix for order in orders])
        answers: list[Verdict | Missing | NoRoom | Failed | None] = [None] * len(orders)
        works = []
        ready = self._gate.pass_ready(orders, states)
        for index, (order, one) in enumerate(zip(orders, ready, strict=True)):
            if isinstance(one, Ready):
                works.append(self._prepare(index, affordable(order, one), one))
            else:
                answers[index] = one
        self.forget([one.request for one in ready if isinstance(one, Failed)])
        works, logits, hidden = self._forward(works)
        prompt_logprobs, logits = prompt_logprobs_of(works, logits)
        chosen = self._choose(works, logits)
        first = 0
        for work in works:
            rows = slice(first, first + work.wanted_rows)
            answers[work.index] = self._commit(
                work, chosen[rows], logits[rows], prompt_logprobs.get(work.request, ()), hidden
            )
            first = rows.stop
        return [
            answer or NoRoom(order.prefix.request, order.prefix.attempt, order.prefix.round)
            for answer, order in zip(answers, orders, strict=True)
        ]

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after a prompt; raises OutOfBlocks when requests being served fill the pool."""
        kv, request = self._model.kv, f"score-{next(self._scored)}"
        kv.open(request, prompt, INTERNAL)
        try:
            while (cached := kv.length(request)) < len(prompt):
                tokens = prompt[cached : cached + SCORE_CHUNK]
                rows = np.arange(len(tokens), dtype=np.int32)
                segment = Segment(
                    request,
                    np.array(tokens, np.int32),
                    positions=cached + rows,
                    mask=None,
                    logits=rows[-1:],
                )
                logits = self._model.forward([segment])
                kv.commit(request, range(len(tokens)), tokens)
            return logits[0, list(token_ids)].cpu().numpy()
        finally:
            kv.release(request)

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def blocks(self) -> KvState:
        kv = self._model.kv
        total = kv.capacity // kv.block_size
        return KvState(kv.free_blocks, kv.used_blocks, kv.cached_blocks, total)

    def roll_back(self, requests: Iterable[str]) -> None:
        """Truncates the KV to the tokens that the failed call's orders left unchanged; the next
        orders send the others again."""
        kv = self._model.kv
        for request in requests:
            if request in kv:
                kv.truncate(request, min(kv.length(request), self._state[request].unchanged))

    def _release(self, request: str, _held: HeldRequest) -> None:
        self._model.kv.release(request)
        self._gate.forget([request])

    def _prepare(self, index: int, order: VerifyOrder, ready: Ready) -> Work:
        """Truncates or opens the request's KV so that it matches the order's prefix, and determines
        what this forward processes."""
        held, kv, request = ready.held, self._model.kv, order.prefix.request
        tokens = held.committed.ids
        # The last committed token is always processed, because its row determines the next token.
        # So are the prompt rows whose log-probabilities are requested, even if the prefix cache has
        # them.
        logprobs_from = order.prompt_logprobs_from
        first_run = len(tokens) - 1 if logprobs_from is None else logprobs_from - 1
        from_cache = None
        if request not in kv:
            # The prefix cache has no features, so rows whose features are requested run as well.
            wanted = order.features
            first_needed = first_run if wanted is None else min(first_run, wanted.first)
            from_cache = kv.open(request, tokens[: first_needed + 1], held.start.scope)
        else:
            usable = min(held.unchanged, first_run)
            if kv.length(request) > usable:
                kv.truncate(request, usable)
        cached = kv.length(request)
        entering = tokens[cached : cached + order.chunk]
        pending = len(tokens) - cached - len(entering)
        tree = DraftTree.empty() if pending else order.tree
        rows = range(0)
        if logprobs_from is not None:
            end = min(held.start.prompt_len - 1, cached + len(entering))
            rows = range(logprobs_from - 1, end)
        return Work(index, order, ready, entering, pending, tree, rows, from_cache, cached)

    def _forward(self, works: list[Work]) -> tuple[list[Work], torch.Tensor, HiddenStates | None]:
        """Runs as many orders as the KV pool has room for, evicting idle requests first."""
        while works:
            try:
                segments, states = [self._segment(work) for work in works], requested_states(works)
                logits = self._model.forward(segments, states)
            except OutOfBlocks:
                if not self._evict_idle({work.request for work in works}):
                    works = works[:-1]
                continue
            first_row = 0
            for work, segment in zip(works, segments, strict=True):
                work.first_row, first_row = first_row, first_row + len(segment.tokens)
            return works, logits, states
        return works, torch.empty(0, self.vocab_size), None

    def _evict_idle(self, running: set[str]) -> bool:
        """Forgets the least recently used request outside this batch; its full blocks stay in the
        prefix cache until their room is needed."""
        kv = self._model.kv
        idle = next((one for one in self._state if one not in running and one in kv), None)
        if idle is not None:
            self._state.forget([idle])
        return idle is not None

    def _segment(self, work: Work) -> Segment:
        cached, entering, nodes = (
            self._model.kv.length(work.request),
            len(work.entering),
            len(work.tree),
        )
        positions = np.concatenate(
            [np.arange(cached, cached + entering), cached + entering - 1 + work.tree.depth]
        )
        logits = np.arange(
            entering - 1 if work.wanted_rows else entering, entering + nodes, dtype=np.int32
        )
        if work.prompt_logprob_rows:
            logits = np.concatenate([np.array(work.prompt_logprob_rows, np.int32) - cached, logits])
        return Segment(
            request=work.request,
            tokens=np.concatenate([work.entering, work.tree.tokens]).astype(np.int32),
            positions=positions.astype(np.int32),
            mask=None if work.tree.is_chain else tree_mask(entering, work.tree),
            logits=logits,
        )

    def _choose(self, works: Sequence[Work], logits: torch.Tensor) -> list[int]:
        """The target's own token after the last committed token and after each node."""
        rows = []
        for work in works:
            if not work.wanted_rows:
                continue
            start, ids, matcher = work.held.start, work.held.committed.ids, work.ready.matcher
            for node in range(ROOT, len(work.tree)):
                path = tuple(int(work.tree.tokens[step]) for step in work.tree.path(node))
                position = len(ids) + len(path)
                allowed = None if matcher is None else matcher.allowed(path)
                rows.append(
                    Row(start.params, start.seed, position, start.prompt_len, ids, path, allowed)
                )
        return choose(logits, rows) if rows else []

    def _commit(
        self,
        work: Work,
        chosen: Sequence[int],
        logits: torch.Tensor,
        prompt_logprobs: tuple[TokenLogprobs, ...],
        states: HiddenStates | None,
    ) -> Verdict:
        """Follows the tree as far as the target agrees, and keeps the accepted path in the KV. What
        the grammar forces after it is committed at once; its rows come with the next order."""
        path, tokens = _walk(work.tree, chosen) if work.wanted_rows else ([], [])
        if tokens:
            tokens += forced_tokens(work.ready, tokens)
        entering = len(work.entering)
        keep = [*range(entering), *(entering + node for node in path)]
        accepted = tokens[: len(path)]
        self._model.kv.commit(work.request, keep, [*work.entering, *accepted])
        work.held.committed.extend(tokens)
        prefix, params = work.order.prefix, work.held.start.params
        reported: tuple[TokenLogprobs, ...] | None = None
        if params.logprobs is not None:
            rows = [0, *(1 + node for node in path)]
            reported = tuple(
                logprobs(logits[row], token, params.logprobs)
                for row, token in zip(rows, tokens, strict=False)
            )
        return Verdict(
            prefix.request,
            prefix.attempt,
            prefix.round,
            tuple(path),
            tuple(tokens),
            work.pending,
            reported,
            prompt_logprobs,
            work.from_cache,
            features_of(work, keep, states),
        )


def _walk(tree: DraftTree, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
    """The accepted nodes, and the target's tokens along them plus one.

    chosen[0] is the target's token after the last committed one, chosen[1 + n] that after node n.
    """
    path: list[int] = []
    tokens = [chosen[0]]
    steps, node = tree.steps(), ROOT
    while (child := steps.get((node, tokens[-1]))) is not None:
        path.append(node := child)
        tokens.append(chosen[1 + node])
    return path, tokens

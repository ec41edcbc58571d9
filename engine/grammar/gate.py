"""Which orders of a batch a verifier can run: those whose grammar is compiled, or that have none.

A request whose grammar still compiles waits, so that no other one waits for it.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from typing import NamedTuple

from engine.grammar.compiler import Grammars
from engine.grammar.matcher import MOST_S, OutputMatcher
from engine.protocol import Failed, Missing, Verdict, VerifyOrder
from engine.soft_state import HeldRequest
from policies.tree import DraftTree

WAIT_S = 0.1
"""The longest that a host waits for a grammar when it has nothing else to do: requests that arrive
meanwhile wait, too."""


class Matchers:
    """The matchers of a host's requests: soft state beside the committed tokens."""

    def __init__(self, grammars: Grammars | None, most_s: float = MOST_S) -> None:
        """`most_s`: of processor time, for each."""
        self._grammars, self._most_s = grammars, most_s
        self._matchers: dict[str, OutputMatcher] = {}

    def follow(self, request: str, held: HeldRequest) -> OutputMatcher | None:
        """The request's matcher after its committed output; None while its grammar compiles, or
        without grammars.

        Raises InvalidRequest if the grammar cannot be compiled, and GrammarViolated.
        """
        matcher = self._matchers.get(request)
        if self._grammars is None:
            return None
        if matcher is None:
            grammar = held.start.params.grammar
            if grammar is None:
                raise ValueError(f"request {request!r} has no grammar")
            compiled = self._grammars.compile(grammar)
            if not compiled.done():
                return None
            matcher = self._matchers[request] = OutputMatcher(
                compiled.result(),
                held.start.params,
                self._grammars.vocab_size,
                self._most_s,
            )
        matcher.follow(held.committed.ids[held.start.prompt_len :])
        return matcher

    def wait(self, held: HeldRequest) -> None:
        """Returns when the request's grammar has been compiled, or cannot be, or after a while."""
        if self._grammars is not None and held.start.params.grammar is not None:
            wait([self._grammars.compile(held.start.params.grammar)], WAIT_S)

    @property
    def follows_grammars(self) -> bool:
        return self._grammars is not None

    def forget(self, requests: Iterable[str]) -> None:
        for request in requests:
            self._matchers.pop(request, None)


_LOG = logging.getLogger("spindle")
MAX_FORCED = 32
"""The most forced tokens of one verdict."""


class Ready(NamedTuple):
    """An order that can run."""

    held: HeldRequest
    matcher: OutputMatcher | None
    """None for a request without a grammar."""


def affordable(order: VerifyOrder, ready: Ready) -> VerifyOrder:
    """The order, without its draft if the request's grammar is slow to follow."""
    if ready.matcher is None or not ready.matcher.is_slow:
        return order
    return order._replace(tree=DraftTree.empty())


def forced_tokens(ready: Ready, tokens: Sequence[int], reserved: int = 0) -> list[int]:
    """What the request's output must continue with after its committed tokens and `tokens`, within
    its length: the grammar allows nothing else, so no drafter has to propose it.

    Empty where log-probabilities are requested: only a forward over these tokens has them.
    `reserved`: so many more tokens need room after these.
    """
    params, committed = ready.held.start.params, len(ready.held.committed)
    if ready.matcher is None or params.logprobs is not None:
        return []
    left = params.max_tokens - (committed - ready.held.start.prompt_len) - len(tokens) - reserved
    return ready.matcher.forced(tokens, min(left, MAX_FORCED))


class GrammarGate:
    def __init__(self, grammars: Grammars | None) -> None:
        self._matchers = Matchers(grammars)

    @property
    def follows_grammars(self) -> bool:
        return self._matchers.follows_grammars

    def forget(self, requests: Iterable[str]) -> None:
        self._matchers.forget(requests)

    def pass_ready(
        self, orders: Sequence[VerifyOrder], states: Sequence[HeldRequest | Missing]
    ) -> list[Ready | Missing | Verdict | Failed]:
        """For each order what to run, or its answer: Failed where the grammar or the output is
        wrong, a verdict without progress where the grammar still compiles."""
        passed = [self._pass(order, held) for order, held in zip(orders, states, strict=True)]
        if passed and all(isinstance(one, Verdict) for one in passed):
            # There is nothing else to do, and an answer would only come back as the same order.
            if isinstance(states[0], HeldRequest):
                self._matchers.wait(states[0])
            passed[0] = self._pass(orders[0], states[0])
        return passed

    def _pass(
        self, order: VerifyOrder, held: HeldRequest | Missing
    ) -> Ready | Missing | Verdict | Failed:
        if isinstance(held, Missing):
            return held
        if held.start.params.grammar is None:
            return Ready(held, None)
        prefix = order.prefix
        try:
            matcher = self._matchers.follow(prefix.request, held)
        except Exception:
            _LOG.exception("request %s fails: it cannot follow its grammar", prefix.request)
            return Failed(prefix.request, prefix.attempt, prefix.round)
        if matcher is not None:
            return Ready(held, matcher)
        pending = len(held.committed)
        return Verdict(prefix.request, prefix.attempt, prefix.round, (), (), pending)

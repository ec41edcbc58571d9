"""Which orders of a batch a verifier can run: those whose grammar is compiled, or that have none.

A request whose grammar still compiles waits, so that no other one waits for it.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.grammar.compiler import Grammars
from engine.grammar.states import Matchers
from engine.protocol import Failed, Missing, Verdict, VerifyOrder
from engine.soft_state import HeldRequest

if TYPE_CHECKING:  # loads xgrammar
    from engine.grammar.matcher import OutputMatcher

_LOG = logging.getLogger("spindle")
MAX_FORCED = 32
"""The most forced tokens of one verdict."""


class Ready(NamedTuple):
    """An order that can run."""

    held: HeldRequest
    matcher: "OutputMatcher | None"
    """Of a request with a grammar."""


def forced_tokens(ready: Ready, tokens: Sequence[int], behind: int = 0) -> list[int]:
    """What the request's output must continue with behind its committed tokens and `tokens`, within
    its length: the grammar allows nothing else, so no drafter has to propose it.

    None where log-probabilities are requested: only a forward over these tokens has them.
    `behind`: so many tokens still have room behind them.
    """
    params, committed = ready.held.start.params, len(ready.held.committed)
    if ready.matcher is None or params.logprobs is not None:
        return []
    left = params.max_tokens - (committed - ready.held.start.prompt_len) - len(tokens) - behind
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

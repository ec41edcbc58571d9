"""Lookups draft what followed a request's last tokens: earlier in its own text (ngram), or in past
outputs of its scope as well (suffix, as in SuffixDecoding)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count

import numpy as np

from engine.drafters.lookup_chain import LookupChain, SearchSettings, compile_kernels, grow
from engine.drafters.lookup_confidence import LookupCalibration
from engine.drafters.past_outputs import PastOutputs
from engine.drafters.text_index import TextIndex
from engine.grammar.compiler import Grammars
from engine.grammar.gate import Matchers
from engine.grammar.matcher import GrammarStuck
from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    DraftStep,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.scopes import Scope
from engine.soft_state import HeldRequest, SoftState
from policies.tree import DraftTree

MOST_GRAMMAR_S = 0.05
"""The event loop's time that a request's grammar may take (engine/grammar/matcher.py); nothing is
drafted for the request after that."""
MAX_TENANTS = 256
"""Whose confidences are kept; those of the least recently used are learned again."""


class LookupDrafter:
    """Soft state: an index per request over its committed tokens, and each scope's past outputs."""

    def __init__(
        self,
        name: str,
        settings: SearchSettings,
        max_requests: int,
        max_past_tokens: int,
        grammars: Grammars | None,
    ) -> None:
        """`grammars`: None: nothing is drafted for requests with a grammar."""
        self.name = name
        self._matchers = Matchers(grammars, MOST_GRAMMAR_S)
        self._settings = settings
        compile_kernels(settings)
        self.past = PastOutputs(max_past_tokens)
        self.on_output: Callable[[Scope, Sequence[int]], None] = lambda _scope, _tokens: None
        """Called with each output that becomes a past output here."""
        self._own: dict[str, TextIndex] = {}
        self._calibrations: dict[str, LookupCalibration] = {}
        """By tenant, as confidences tell how right drafts were; least recently used first."""
        self._state = SoftState(max_requests, on_drop=self._drop)

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        held = self._state.accept([order.prefix for order in orders])
        grown = [
            one if isinstance(one, Missing) else self._grow(order, one)
            for order, one in zip(orders, held, strict=True)
        ]
        kept = _kept_tokens(orders, grown, continue_drafting)
        return [_answer(*one) for one in zip(orders, grown, kept, strict=True)]

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        for request in requests:
            self._own.pop(request, None)
            for calibration in self._calibrations.values():
                calibration.forget(request)

    def _calibration_of(self, tenant: str) -> LookupCalibration:
        calibration = self._calibrations.pop(tenant, None) or LookupCalibration()
        self._calibrations[tenant] = calibration
        if len(self._calibrations) > MAX_TENANTS:
            del self._calibrations[next(iter(self._calibrations))]
        return calibration

    def _grow(self, order: DraftOrder, held: HeldRequest) -> LookupChain:
        request = order.prefix.request
        if request not in self._own:
            self._own[request] = TextIndex()
        own = self._own[request]
        own.follow(held.committed.ids, held.unchanged)
        scope = held.start.scope
        calibration, past = self._calibration_of(scope.tenant), self.past.index(scope)
        calibration.update(request, held.committed.ids, held.unchanged)
        grown = grow(own, past, self._settings, calibration.weights, order.depth)
        if held.start.params.grammar is not None:
            grown = self._within_grammar(grown, request, held)
        calibration.record(request, own.end, grown.tokens, grown.kinds)
        if grown.past_position >= 0:
            self.past.touch(scope, grown.past_position)
        return grown

    def _within_grammar(self, grown: LookupChain, request: str, held: HeldRequest) -> LookupChain:
        """Up to the first token that the request's grammar refuses; empty while it compiles."""
        try:
            matcher = self._matchers.follow(request, held)
            length = 0 if matcher is None else matcher.allowed_length(grown.tokens.tolist())
        except GrammarStuck:
            length = 0
        return grown.first(length)

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._matchers.forget([request])
        self._own.pop(request, None)
        scope = held.start.scope
        if scope.tenant in self._calibrations:
            self._calibrations[scope.tenant].forget(request)
        output = held.committed.ids[held.start.prompt_len :]
        if held.start.remember and output:
            self.past.add(scope, output)
            self.on_output(scope, output)


class NgramDrafter(LookupDrafter):
    """A lookup in each request's own text alone."""

    def __init__(self, name: str = "ngram", grammars: Grammars | None = None) -> None:
        super().__init__(name, SearchSettings(4, 8), 1024, 0, grammars)


class SuffixDrafter(LookupDrafter):
    """A lookup in each request's own text and in its scope's past outputs.

    An output becomes a past output when its request leaves (`forget`, or eviction). A new drafter
    has none, so a benchmark that must not draft from its own answers starts with one.
    """

    def __init__(
        self, name: str = "suffix", past_tokens: int = 100_000, grammars: Grammars | None = None
    ) -> None:
        """`past_tokens`: tokens of past outputs kept at most, of all scopes (their memory:
        docs/drafters.md)."""
        super().__init__(name, SearchSettings(10, 16), 256, past_tokens, grammars)


def _answer(order: DraftOrder, grown: LookupChain | Missing, kept: int) -> Draft | Missing:
    if isinstance(grown, Missing):
        return grown
    prefix = order.prefix
    nodes = np.arange(kept, dtype=np.int32)
    tree = DraftTree(grown.tokens[:kept], nodes - 1, nodes + 1, grown.confidence[:kept])
    return Draft(prefix.request, prefix.attempt, prefix.round, tree)


def _kept_tokens(
    orders: Sequence[DraftOrder],
    grown: Sequence[LookupChain | Missing],
    continue_drafting: ContinueDrafting,
) -> list[int]:
    """How much of each chain the policy keeps. A lookup grows its whole chain in one call, as that
    costs next to nothing; the policy then decides token by token, as for a model drafter."""
    chains = {number: one for number, one in enumerate(grown) if isinstance(one, LookupChain)}
    if continue_drafting is to_ordered_depth:
        return [len(chains[n].tokens) if n in chains else 0 for n in range(len(grown))]
    kept = [0] * len(grown)
    drafting = list(chains)
    for depth in count():
        drafting = [number for number in drafting if len(chains[number].tokens) > depth]
        if not drafting:
            return kept
        step = DraftStep(
            depth,
            [orders[number].prefix.request for number in drafting],
            [chains[number].path_confidence[max(depth - 1, 0) : depth] for number in drafting],
        )
        answers = zip(drafting, continue_drafting(step), strict=True)
        drafting = [number for number, more in answers if more]
        for number in drafting:
            kept[number] = depth + 1
    return kept

"""Lookups draft what followed a request's last tokens: earlier in its own text (ngram), or in past
outputs of its scope as well (suffix, as in SuffixDecoding)."""

from collections.abc import Iterable, Sequence

from engine.drafters.lookup_confidence import LookupCalibration
from engine.drafters.lookup_levels import prune_by_levels
from engine.drafters.lookup_tree import (
    LookupTree,
    SearchSettings,
    compile_kernels,
    grow,
    keep_nodes,
)
from engine.drafters.past_outputs import PastOutputs
from engine.drafters.text_index import TextIndex
from engine.grammar.compiler import Grammars
from engine.grammar.gate import Matchers
from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from engine.scopes import SHARED, Scope
from engine.soft_state import HeldRequest, SoftState
from policies.tree import ROOT

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
        self._matchers = Matchers(grammars)
        self._settings = settings
        compile_kernels(settings)
        self._past = PastOutputs(max_past_tokens)
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
        return prune_by_levels(orders, grown, continue_drafting)

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

    def _grow(self, order: DraftOrder, held: HeldRequest) -> LookupTree:
        request = order.prefix.request
        if request not in self._own:
            self._own[request] = TextIndex()
        own = self._own[request]
        own.follow(held.committed.ids, held.unchanged)
        scope = held.start.scope
        calibration, past = self._calibration_of(scope.tenant), self._past.index(scope)
        calibration.update(request, held.committed.ids, held.unchanged)
        weights = calibration.weights
        grown = grow(own, past, self._settings, weights, order.depth, order.width)
        if held.start.params.grammar is not None:
            grown = self._within_grammar(grown, request, held)
        calibration.record(request, own.end, grown.tree, grown.kinds)
        if grown.past_position >= 0:
            self._past.touch(scope, grown.past_position)
        return grown

    def _within_grammar(self, grown: LookupTree, request: str, held: HeldRequest) -> LookupTree:
        """Without the nodes that the request's grammar refuses; empty while it compiles."""
        matcher, tree = self._matchers.follow(request, held), grown.tree
        kept: list[int] = []
        if matcher is not None:
            for node, parent in enumerate(tree.parents.tolist()):
                path = [int(tree.tokens[step]) for step in tree.path(node)]
                if (parent == ROOT or parent in kept) and matcher.allows(path):
                    kept.append(node)
        return keep_nodes(grown, kept)

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._matchers.forget([request])
        self._own.pop(request, None)
        scope = held.start.scope
        if scope.tenant in self._calibrations:
            self._calibrations[scope.tenant].forget(request)
        self._past.add(scope, held.committed.ids[held.start.prompt_len :])


NGRAM_POSITIONS = 8


class NgramDrafter(LookupDrafter):
    """A lookup in each request's own text alone."""

    def __init__(
        self,
        name: str = "ngram",
        min_length: int = 1,
        max_length: int = 4,
        max_requests: int = 1024,
        grammars: Grammars | None = None,
    ) -> None:
        if not 1 <= min_length <= max_length:
            raise ValueError(f"1 <= min_length <= max_length, got {min_length} and {max_length}")
        settings = SearchSettings(min_length, max_length, NGRAM_POSITIONS)
        super().__init__(name, settings, max_requests, 0, grammars)


SUFFIX_POSITIONS = 16


class SuffixDrafter(LookupDrafter):
    """A lookup in each request's own text and in its scope's past outputs.

    An output becomes a past output when its request leaves (`forget`, or eviction) or through
    `learn`. A new drafter has none, so a benchmark that must not draft from its own answers starts
    with one.
    """

    def __init__(
        self,
        name: str = "suffix",
        past_tokens: int = 100_000,
        min_match: int = 1,
        max_match: int = 10,
        max_requests: int = 256,
        grammars: Grammars | None = None,
    ) -> None:
        """`past_tokens`: tokens of past outputs kept at most, of all scopes (their memory:
        docs/drafters.md)."""
        if not 1 <= min_match <= max_match:
            raise ValueError(f"1 <= min_match <= max_match, got {min_match} and {max_match}")
        settings = SearchSettings(min_match, max_match, SUFFIX_POSITIONS)
        super().__init__(name, settings, max_requests, past_tokens, grammars)

    def learn(self, tokens: Sequence[int], scope: Scope = SHARED) -> None:
        """Adds an output from elsewhere to the past outputs."""
        self._past.add(scope, tokens)

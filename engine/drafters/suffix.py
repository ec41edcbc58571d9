"""Suffix drafting (SuffixDecoding): drafts what followed the last tokens in this request's own text
or in the past outputs of its scope."""

from collections.abc import Sequence

from engine.drafters.lookup import LookupDrafter
from engine.drafters.lookup_tree import SearchSettings
from engine.grammar.compiler import Grammars
from engine.scopes import SHARED, Scope

MAX_POSITIONS = 16


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
        settings = SearchSettings(min_match, max_match, MAX_POSITIONS)
        super().__init__(name, settings, max_requests, past_tokens, grammars)

    def learn(self, tokens: Sequence[int], scope: Scope = SHARED) -> None:
        """Adds an output from elsewhere to the past outputs."""
        self._past.add(scope, tokens)

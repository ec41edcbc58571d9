"""Prompt lookup: drafts what followed the last few tokens earlier in the same request."""

from engine.drafters.lookup import LookupDrafter
from engine.drafters.lookup_tree import SearchSettings
from engine.grammar.compiler import Grammars

MAX_POSITIONS = 8


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
        settings = SearchSettings(min_length, max_length, MAX_POSITIONS)
        super().__init__(name, settings, max_requests, 0, grammars)

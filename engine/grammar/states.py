"""The matchers of a host's requests: soft state beside the committed tokens."""

from collections.abc import Iterable
from concurrent.futures import wait
from typing import TYPE_CHECKING

from engine.grammar.compiler import Grammars
from engine.soft_state import HeldRequest

if TYPE_CHECKING:
    from engine.grammar.matcher import OutputMatcher

WAIT_S = 0.1
"""The longest that a host waits for a grammar when it has nothing else to do: requests that arrive
meanwhile wait, too."""


class Matchers:
    """Of the requests that have a grammar, by request."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._matchers: dict[str, OutputMatcher] = {}

    def follow(self, request: str, held: HeldRequest) -> "OutputMatcher | None":
        """The request's matcher behind its committed output; None while its grammar compiles, or
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
            from engine.grammar.matcher import OutputMatcher

            matcher = self._matchers[request] = OutputMatcher(
                compiled.result(), held.start.params, self._grammars.vocab_size
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

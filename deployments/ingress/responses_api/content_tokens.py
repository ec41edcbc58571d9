"""Which tokens of a parsed output are those of its message, for their log-probabilities."""

from collections import deque
from collections.abc import Sequence

from deployments.ingress.answers.choices import OutputToken
from deployments.ingress.parsing.parser import CallStart, Content, Delta


class ContentTokens:
    """Finds what a parser has found again in the text, in its order: tags, calls, reasoning and the
    white space beside them have no tokens of the message."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0
        """The end of what was found last."""
        self._waiting: deque[OutputToken] = deque()
        """Tokens that end behind that place."""

    def take(
        self, text: str, tokens: Sequence[OutputToken], deltas: Sequence[Delta]
    ) -> list[OutputToken]:
        """`text`, `tokens`: what has been added to the output. `deltas`: what the parser has found
        with it. Returns the tokens of its content."""
        self._text += text
        self._waiting += tokens
        content: list[OutputToken] = []
        for delta in deltas:
            part = delta.name if isinstance(delta, CallStart) else delta.text
            start = self._text.find(part, self._read)
            if start < 0:  # arguments that are written anew as JSON
                continue
            self._read = start + len(part)
            passed = self._pass()
            if isinstance(delta, Content):
                content += [token for token, end in passed if end > start]
        return content

    def _pass(self) -> list[tuple[OutputToken, int]]:
        """The tokens that begin before the end of what was found, each with its own end."""
        passed = []
        while self._waiting and self._waiting[0].offset < self._read:
            token = self._waiting.popleft()
            end = self._waiting[0].offset if self._waiting else len(self._text)
            passed.append((token, end))
        return passed

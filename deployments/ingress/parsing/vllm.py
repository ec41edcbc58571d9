"""vLLM's parsers of tool calls and reasoning, for the formats that Spindle has none of its own for.

They run without vLLM's engine, but importing them takes seconds and some 130 MB.
"""

from collections.abc import Sequence
from typing import Any

from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Reasoning,
    new_call_id,
)
from deployments.ingress.requests.tools import ToolUse


class VllmParser:
    """Has the interface of `OutputParser`."""

    named = False
    """A named function is called by the grammar, without vLLM's parsers."""

    def __init__(self, parser: Any, request: Any, prompt_ids: Sequence[int]) -> None:
        self._parser = parser
        self._request = request
        self._prompt_ids = list(prompt_ids)
        self._started: set[int] = set()
        # From vLLM 0.33 on, None: the client has not said, and they are left out.
        self.keeps_special = parser.adjust_request(request).skip_special_tokens is False

    @property
    def calls(self) -> int:
        return len(self._started)

    def push(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        return self._deltas(text, token_ids, finished=False)

    def finish(self) -> list[Delta]:
        return self._deltas("", [], finished=True)

    def whole(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        """vLLM parses whole texts by other code than streams."""
        reasoning, content, calls = self._parser.parse(
            text, self._request, enable_auto_tools=True, model_output_token_ids=list(token_ids)
        )
        found: list[Delta] = [Reasoning(reasoning)] if reasoning else []
        found += [Content(content)] if content else []
        for index, call in enumerate(calls or []):
            if self._surplus(index):
                break
            self._start(found, index, call.name)
            found.append(CallArguments(index, call.arguments))
        return found

    def _deltas(self, text: str, token_ids: Sequence[int], finished: bool) -> list[Delta]:
        message = self._parser.parse_delta(
            text, list(token_ids), self._request, self._prompt_ids, finished=finished
        )
        if message is None:
            return []
        found: list[Delta] = [Reasoning(message.reasoning)] if message.reasoning else []
        found += [Content(message.content)] if message.content else []
        for call in message.tool_calls:
            if call.function is None or self._surplus(call.index):
                continue
            if call.function.name and call.index not in self._started:
                self._start(found, call.index, call.function.name)
            if call.function.arguments:
                found.append(CallArguments(call.index, call.function.arguments))
        return found

    def _start(self, found: list[Delta], index: int, name: str) -> None:
        self._started.add(index)
        found.append(CallStart(index, new_call_id(), name))

    def _surplus(self, index: int) -> bool:
        return index > 0 and not self._request.parallel_tool_calls


class VllmParsers:
    """Makes a parser for each choice."""

    def __init__(
        self, tool_parser: str | None, reasoning_parser: str | None, tokenizer: Any
    ) -> None:
        """Raises ValueError if vLLM is not installed, does not know a name, or cannot use the
        parser with this tokenizer."""
        try:
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.parser.parser_manager import ParserManager
        except ImportError as error:
            raise ValueError("only vLLM knows it, and vLLM is not installed") from error
        self._request = ChatCompletionRequest
        self._tokenizer = tokenizer
        try:
            self._parser = ParserManager.get_parser(
                tool_parser, reasoning_parser, enable_auto_tools=True, tokenizer=tokenizer
            )
        except TypeError as error:
            raise ValueError(str(error)) from error

    def make(self, use: ToolUse, prompt_ids: Sequence[int]) -> VllmParser:
        request = self._make_request(use)
        return VllmParser(self._parser(self._tokenizer, request.tools), request, prompt_ids)

    def _make_request(self, use: ToolUse) -> Any:
        return self._request(
            model="",
            messages=[{"role": "user", "content": ""}],
            tools=[tool.model_dump() for tool in use.tools] or None,
            tool_choice="auto" if use.may_call else "none",
            parallel_tool_calls=use.parallel,
        )

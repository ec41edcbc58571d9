"""Chooses the parser of an output by the config and by what the request asks for: one of Spindle's
own, or one of vLLM's.

vLLM's run without its engine, but importing them takes seconds and some 130 MB.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from cluster.config import TargetConfig
from deployments.ingress.parsing.formats import (
    call_list,
    content,
    hermes,
    llama3_json,
    named_call,
    thinking,
)
from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Format,
    FormatParser,
    Reasoning,
    new_call_id,
)
from deployments.ingress.parsing.pythonic import pythonic
from deployments.ingress.requests.tools import ToolUse
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest


class VllmParser:
    """Has the interface of `FormatParser`."""

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


OutputParser = FormatParser | VllmParser
"""The parser of one choice."""


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


TOOL_PARSERS = ("hermes", "llama3_json", "pythonic")
REASONING_PARSERS = ("deepseek_r1", "qwen3")
"""Spindle's own; for any other name vLLM's parsers are used. vLLM knows these names as well."""

_PROMPT_END = 8
"""Tokens at the end of a prompt among which a template would open the reasoning."""


class OutputParsers:
    def __init__(self, config: TargetConfig, tokens: Tokens) -> None:
        """Raises ValueError, naming the config's fields, for a parser that cannot be had."""
        self._tool_parser = config.tool_parser
        self._reasoning_parser = config.reasoning_parser
        self._tokens = tokens
        self._vllm: VllmParsers | None = None
        own = (None, *TOOL_PARSERS, *REASONING_PARSERS)
        if self._tool_parser not in own or self._reasoning_parser not in own:
            try:
                self._vllm = VllmParsers(
                    self._tool_parser, self._reasoning_parser, tokens.tokenizer
                )
            except ValueError as error:
                raise ValueError(
                    f"target.tool_parser = {self._tool_parser!r}, target.reasoning_parser = "
                    f"{self._reasoning_parser!r}: {error}"
                ) from error

    def check(self, use: ToolUse) -> None:
        """Raises InvalidRequest if calls could not be recognized."""
        if use.may_call and not use.is_enforced and self._tool_parser is None:
            raise InvalidRequest(
                "tool_choice",
                "auto needs target.tool_parser in the server's config; required and a named "
                "function work without it",
            )

    def parses(self, use: ToolUse) -> bool:
        """Whether outputs may be more than content."""
        return use.may_call or self._reasoning_parser is not None

    def make(self, use: ToolUse, prompt_ids: Sequence[int]) -> OutputParser | None:
        """None: the output is content only."""
        if use.named is not None:
            return FormatParser([partial(named_call, name=use.named)], named=True)
        if use.is_enforced:
            return FormatParser([call_list], use.parallel)
        if not self.parses(use):
            return None
        if self._vllm is not None:
            return self._vllm.make(use, prompt_ids)
        calls = self._calls(use) if use.may_call else content
        return FormatParser(
            [*self._reasoning(prompt_ids), calls], use.parallel, self._tags_are_special(use)
        )

    def _tags_are_special(self, use: ToolUse) -> bool:
        tags = ["<tool_call>"] if use.may_call and self._tool_parser == "hermes" else []
        tags += ["<think>"] if self._reasoning_parser is not None else []
        return any(self._tokens.spells_special(tag) for tag in tags)

    def _calls(self, use: ToolUse) -> Format:
        names = frozenset(tool.function.name for tool in use.tools)
        match self._tool_parser:
            case "hermes":
                return hermes
            case "llama3_json":
                return partial(llama3_json, names=names)
            case _:
                return partial(pythonic, names=names)

    def _reasoning(self, prompt_ids: Sequence[int]) -> list[Format]:
        if self._reasoning_parser is None:
            return []
        end = self._tokens.decode(prompt_ids[-_PROMPT_END:]).rstrip()
        opened = end.endswith("<think>") or (
            self._reasoning_parser == "deepseek_r1" and not end.endswith("</think>")
        )
        return [partial(thinking, opened=opened)]

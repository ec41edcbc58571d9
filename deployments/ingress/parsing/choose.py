"""Chooses the parser of an output by the config and by what the request asks for."""

from collections.abc import Sequence
from functools import partial

from cluster.config import TargetConfig
from deployments.ingress.parsing.json_formats import (
    call_list,
    content,
    hermes,
    llama3_json,
    named_call,
    thinking,
)
from deployments.ingress.parsing.parser import Format, FormatParser, OutputParser
from deployments.ingress.parsing.pythonic import pythonic
from deployments.ingress.parsing.vllm import VllmParsers
from deployments.ingress.requests.tools import ToolUse
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest

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

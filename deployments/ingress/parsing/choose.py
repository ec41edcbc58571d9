"""Chooses the parser of an output by the config and by what the request asks for."""

from collections.abc import Sequence
from functools import partial

from cluster.config import TargetConfig
from deployments.ingress.parsing.formats import (
    call_list,
    content,
    hermes,
    llama3_json,
    named_call,
    thinking,
)
from deployments.ingress.parsing.parser import Format, FormatParser
from deployments.ingress.requests.tools import ToolUse
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest

_PROMPT_END = 8
"""Tokens at the end of a prompt among which a template would open the reasoning."""


class OutputParsers:
    def __init__(self, config: TargetConfig, tokens: Tokens) -> None:
        self._tool_parser = config.tool_parser
        self._reasoning_parser = config.reasoning_parser
        self._tokens = tokens

    def check(self, use: ToolUse) -> None:
        """Raises InvalidRequest if calls could not be recognized."""
        if use.may_call and not use.is_enforced and self._tool_parser is None:
            raise InvalidRequest(
                "tool_choice",
                "auto needs target.tool_parser in the server's config; required and a named "
                "function work without it",
            )

    def make(
        self, use: ToolUse, prompt_ids: Sequence[int], has_form: bool = False
    ) -> FormatParser | None:
        """None: the output is content only. `has_form`: a grammar forms the output from its first
        token on, so there is no reasoning."""
        if use.named is not None:
            return FormatParser([partial(named_call, name=use.named)], named=True)
        names = frozenset(tool.function.name for tool in use.tools)
        if use.is_enforced:
            return FormatParser([partial(call_list, names=names)], use.parallel)
        if has_form or not (use.may_call or self._reasoning_parser):
            return None
        calls = self._calls(use, names) if use.may_call else content
        return FormatParser(
            [*self._reasoning(prompt_ids), calls], use.parallel, self._tags_are_special(use)
        )

    def _tags_are_special(self, use: ToolUse) -> bool:
        tags = ["<tool_call>"] if use.may_call and self._tool_parser == "hermes" else []
        tags += ["<think>"] if self._reasoning_parser is not None else []
        return any(self._tokens.spells_special(tag) for tag in tags)

    def _calls(self, use: ToolUse, names: frozenset[str]) -> Format:
        if self._tool_parser == "hermes":
            return partial(hermes, names=names if use.is_limited else None)
        return partial(llama3_json, names=names)

    def _reasoning(self, prompt_ids: Sequence[int]) -> list[Format]:
        if self._reasoning_parser is None:
            return []
        end = self._tokens.decode(prompt_ids[-_PROMPT_END:]).rstrip()
        opened = end.endswith("<think>") or (
            self._reasoning_parser == "deepseek_r1" and not end.endswith("</think>")
        )
        return [partial(thinking, opened=opened)]

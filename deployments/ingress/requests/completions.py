"""The requests of OpenAI's two completion APIs. docs/api.md has the table of their fields."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Self, cast

from pydantic import model_validator

from cluster.config.section import within
from deployments.ingress.requests.chat_messages import Messages
from deployments.ingress.requests.fields import (
    Alternatives,
    AtLeastOne,
    Effort,
    JsonObject,
    Prompt,
    Verbosity,
)
from deployments.ingress.requests.shared_fields import SharedFields
from deployments.ingress.requests.structured_outputs import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    output_grammar,
)
from deployments.ingress.requests.tools import ToolChoice, Tools, ToolUse, calls_grammar
from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar
from policies import ranges


class _FormedRequest(SharedFields):
    response_format: ResponseFormat | None = None
    """The form of the output: text, a JSON object, or JSON by a schema."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        """That two forms do not exclude each other, and none is too large."""
        output_grammar(self.response_format, self.structured_outputs)
        return self

    @property
    def grammar(self) -> OutputGrammar | None:
        """What the output keeps to."""
        return output_grammar(self.response_format, self.structured_outputs)


class CompletionRequest(_FormedRequest):
    """POST /v1/completions."""

    prompt: Prompt
    """Text, token ids, or a list of either."""
    max_tokens: Annotated[int, within(ranges.COUNT)] = 16
    """The most output tokens; what the context has no room for is left out. 0 returns only the
    prompt, and requires `echo`."""
    logprobs: Alternatives | None = None
    """How many alternatives to list beside each token's log-probability."""
    echo: bool = False
    """Each choice begins with its prompt, and `logprobs` covers the prompt too."""
    add_special_tokens: bool = True
    """Encode a prompt's text with the special tokens that the tokenizer adds."""

    @model_validator(mode="after")
    def _check_zero_max_tokens(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens", "0 needs echo to be true")
        return self

    @property
    def tool_use(self) -> ToolUse:
        return ToolUse()

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts; each gets `n` answers."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        # A list is of one kind, and may be long.
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("Sequence[str | list[int]]", self.prompt)

    @property
    def token_limit(self) -> int:
        return self.max_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_tokens"

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ChatRequest(_FormedRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    """The conversation so far; it goes through the checkpoint's chat template."""
    max_tokens: AtLeastOne | None = None
    """The older name of `max_completion_tokens`. If both are absent: as many as fit into the
    context."""
    max_completion_tokens: AtLeastOne | None = None
    """The most output tokens; what the context has no room for is left out."""
    logprobs: bool = False
    """Return the log-probability of each output token."""
    top_logprobs: Alternatives | None = None
    """How many alternatives to list beside each."""
    add_generation_prompt: bool | None = None
    """Begin the model's answer after the messages; by default unless the final one is continued."""
    continue_final_message: bool = False
    """The model continues the last message instead of answering it."""
    chat_template_kwargs: JsonObject = {}
    """Variables for the checkpoint's chat template; those that it does not use have no effect."""
    reasoning_effort: Effort | None = None
    """A variable of the chat template, as `enable_thinking` is, which `none` makes false."""
    verbosity: Verbosity | None = None
    """A variable of the chat template."""
    tools: Tools = []
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """`auto` (the default where there are tools), `none`, `required`, one function, or
    `allowed_tools`: some of them."""
    parallel_tool_calls: bool = True
    """False: the answer has at most one call."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", "excludes add_generation_prompt; give only one of them"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        if self.tool_use.may_call and self.structured_outputs is not None:
            raise InvalidRequest(
                "structured_outputs", "and tools exclude each other; use response_format"
            )
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidRequest("max_tokens", "differs from max_completion_tokens; give one")
        return self

    @property
    def generation_prompt(self) -> bool:
        given = self.add_generation_prompt
        return not self.continue_final_message if given is None else given

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """As vLLM gives them to the chat template; `chat_template_kwargs` win."""
        effort = self.reasoning_effort
        given = {
            "reasoning_effort": effort,
            "enable_thinking": None if effort is None else effort != "none",
            "verbosity": self.verbosity,
        }
        return {
            **{name: value for name, value in given.items() if value is not None},
            **self.chat_template_kwargs,
        }

    @property
    def token_limit(self) -> int | None:
        """None: as many as fit into the context."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def without_effect(self) -> tuple[str, ...]:
        strict = any(tool.function.strict for tool in self.tools)
        unchecked = strict and not self.tool_use.is_enforced
        return (*super().without_effect, *(["tools.function.strict"] if unchecked else []))

    @cached_property
    def tool_use(self) -> ToolUse:
        match self.response_format:
            case JsonObjectFormat():
                answer: Any = {"type": "object", "additionalProperties": True}
            case JsonSchemaFormat(json_schema=named):
                answer = named.schema_
            case _:
                answer = None
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls, answer)

    @cached_property
    def grammar(self) -> OutputGrammar | None:
        """What the output keeps to."""
        if self.tool_use.is_enforced:
            return calls_grammar(self.tool_use)
        return super().grammar


GenerationRequest = CompletionRequest | ChatRequest
"""Both classes have `tool_use`, `token_limit` (the most output tokens), `token_limit_field` (its
field's name) and `alternatives` (how many to list beside each token's log-probability; None: no
log-probabilities)."""


def echoes(request: GenerationRequest) -> bool:
    return isinstance(request, CompletionRequest) and request.echo

"""OpenAI's Responses API: its request, and the chat that it is served as.

The whole conversation comes with each request, or continues a stored response (stored.py).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from cluster.config.section import within
from deployments.ingress.answers.json_text import without_infinities
from deployments.ingress.errors import ApiError
from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.fields import (
    Alternatives,
    AtLeastOne,
    Effort,
    Fields,
    Text,
    Verbosity,
)
from deployments.ingress.requests.shared_fields import SharedFields
from deployments.ingress.requests.tools import (
    MAX_TOOLS,
    Schema,
    Tool,
    ToolChoice,
    ToolUse,
)
from deployments.ingress.requests.unsupported import SHARED, Unsupported
from deployments.ingress.responses_api.items import Item, Items, messages_of
from deployments.ingress.responses_api.tools import FunctionChoice, FunctionTool
from engine.errors import InvalidRequest
from policies import ranges

LOGPROBS = "message.output_text.logprobs"
_MAX_INCLUDE = 64
_NOT_STORED = Unsupported("is not supported; use previous_response_id, or send the items in input")
_LENGTH = Unsupported("is not a field here; use max_output_tokens")
_FORM = Unsupported("is not a field here; use text.format")
UNSUPPORTED: Mapping[str, Unsupported] = {
    **SHARED,
    "conversation": _NOT_STORED,
    "background": Unsupported("is not supported; use stream", (False,)),
    "truncation": Unsupported("shorten the input yourself", ("disabled",)),
    "prompt": Unsupported("there are no stored prompts; use instructions and input"),
    "messages": Unsupported("is for /v1/chat/completions; use input"),
    "max_tokens": _LENGTH,
    "max_completion_tokens": _LENGTH,
    "response_format": _FORM,
    "logprobs": Unsupported(f"is not a field here; use include with {LOGPROBS}", (False,)),
}
"""What would change the response and cannot be honoured."""


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    """The form of the output."""
    name: Text | None = None
    """Not shown to the model."""
    description: Text | None = None
    """Not shown to the model."""
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    """The JSON schema that the output keeps to, for `json_schema`."""
    strict: bool = False
    """Without effect: outputs always keep to the schema."""

    @model_validator(mode="after")
    def _a_schema_for_json_schema(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise InvalidRequest("text", "format.schema belongs to type json_schema")
        return self

    @property
    def echoed(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        return self.model_dump(by_alias=True)

    @property
    def for_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        named = {"name": self.name, "description": self.description, "strict": self.strict}
        return {"type": "json_schema", "json_schema": {**named, "schema": self.schema_}}


class TextOptions(Fields):
    format: TextFormat = TextFormat()
    """`text`, `json_object`, or `json_schema` with a schema."""
    verbosity: Verbosity | None = None
    """A variable of the chat template."""


class ReasoningOptions(Fields):
    effort: Effort | None = None
    """A variable of the chat template."""


class _Chat(ChatRequest):
    """As which a response is served: the last events of its stream repeat the output."""

    @property
    def keeps_output(self) -> bool:
        return True


class ResponsesRequest(SharedFields):
    """POST /v1/responses."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = UNSUPPORTED

    input: Items
    """A text, or the conversation's items."""
    previous_response_id: Text | None = None
    """The response after whose items the input comes, if the config stores any."""
    store: bool = False
    """False, where it is given: do not keep the response for `previous_response_id`."""
    instructions: Text | None = None
    """A system message before the input."""
    n: Literal[1] = 1
    """A response is one answer."""
    max_output_tokens: AtLeastOne | None = None
    """Absent: as many as fit into the context."""
    reasoning: ReasoningOptions = ReasoningOptions()
    """How much the model reasons, where its chat template knows that."""
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = []
    """Functions that the model may call."""
    tool_choice: FunctionChoice | None = None
    """`auto` (the default where there are tools), `none`, `required`, one function, or
    `allowed_tools`: some of them."""
    parallel_tool_calls: bool = True
    """False: the answer has at most one call."""
    text: TextOptions = TextOptions()
    """The output's form."""
    include: Annotated[list[Text], Field(max_length=_MAX_INCLUDE, fail_fast=True)] = []
    """`message.output_text.logprobs`; what others name does not occur here."""
    top_logprobs: Alternatives | None = None
    """How many alternatives to list beside each token's log-probability."""
    max_tool_calls: Annotated[int, within(ranges.COUNT)] | None = None
    """Limits tools that run at the server, of which there are none."""
    return_token_ids: Literal[False] = False
    """Only the completion APIs return token ids."""

    @model_validator(mode="after")
    def _check_trace(self) -> Self:
        if self.spindle.trace:
            raise InvalidRequest("spindle", "trace is for /v1/chat/completions")
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        others = [one for one in self.include if one != LOGPROBS]
        strict = any(tool.strict for tool in self.tools) and not self.tool_use.is_enforced
        shared = [name for name in super().without_effect if name != "store"]
        return (
            *shared,
            *(["include"] if others else []),
            *(["tools.strict"] if strict else []),
        )

    @cached_property
    def tool_use(self) -> ToolUse:
        """Raises InvalidRequest if the fields contradict each other."""
        form = self.text.format
        answer = {"type": "object"} if form.type == "json_object" else form.schema_
        tools = [Tool.model_validate(tool.for_chat) for tool in self.tools]
        return ToolUse.of(tools, self._chat_choice, self.parallel_tool_calls, answer)

    @property
    def _chat_choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        return choice if choice is None or isinstance(choice, str) else choice.for_chat

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs is not None

    def after(self, items: Sequence[Item]) -> Self:
        """The request whose conversation begins with these items."""
        request = self.model_copy(update={"input": [*items, *self.input]})
        request.__dict__.pop("chat", None)  # made of the old input
        return request

    def prepare(self) -> None:
        """Makes what takes long, in a thread. Raises ApiError."""
        try:
            _ = self.chat
        except (InvalidRequest, ValidationError) as error:
            raise renamed(ApiError.of(error)) from None
        _ = self.echoed

    @cached_property
    def chat(self) -> ChatRequest:
        """The same request as a chat. Errors name the chat's fields."""
        given = {
            name: getattr(self, name)
            for name in SharedFields.model_fields
            if name in self.model_fields_set
        }
        return _Chat.model_validate(
            {
                **given,
                "messages": list(messages_of(self.instructions, self.input)),
                "max_completion_tokens": self.max_output_tokens,
                "logprobs": self.wants_logprobs,
                "top_logprobs": self.top_logprobs,
                "tools": [tool.for_chat for tool in self.tools],
                "tool_choice": self._chat_choice,
                "parallel_tool_calls": self.parallel_tool_calls,
                "response_format": self.text.format.for_chat,
                "reasoning_effort": self.reasoning.effort,
                "verbosity": self.text.verbosity,
            }
        )

    @cached_property
    def echoed(self) -> dict[str, Any]:
        """What the response repeats of the request."""
        choice = self.tool_choice or ("auto" if self.tools else "none")
        echoed = {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "service_tier": "default",
            "background": False,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": self.text.format.echoed, "verbosity": self.text.verbosity},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }
        return without_infinities(echoed)


_RENAMED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "logprobs": "top_logprobs",
}
"""A chat's fields by their names in this API."""


def renamed(error: ApiError) -> ApiError:
    """A chat's error with the field's name in this API."""
    name = _RENAMED.get(error.param or "")
    if name is None:
        return error
    message = f"{name}{error.message.removeprefix(error.param or '')}"
    return ApiError(error.status, message, name, error.code)

"""OpenAI's Responses API: its request, and the chat that it is served as.

Nothing is stored: the whole conversation comes with each request.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cluster.config.section import within
from deployments.ingress.fields import Fields, Text
from deployments.ingress.requests import Alternatives, AtLeastOne, ChatRequest, SharedFields
from deployments.ingress.responses_api.items import Items, messages_of
from deployments.ingress.tools import FunctionName, Schema
from engine.errors import InvalidRequest
from policies import ranges

LOGPROBS = "message.output_text.logprobs"
_WAY_OUT = "send the items of the conversation so far in input"


class FunctionTool(Fields):
    """A function, as the Responses API describes it."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool = False

    @property
    def for_chat(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": self.model_dump(exclude_unset=True, exclude={"type"}),
        }


class NamedFunctionChoice(Fields):
    type: Literal["function"]
    name: FunctionName

    @property
    def for_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Text | None = None
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool = False

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
    verbosity: Literal["medium"] = "medium"


class ReasoningOptions(Fields):
    effort: Literal["none"] | None = None
    summary: None = None


class ResponsesRequest(SharedFields):
    """POST /v1/responses."""

    input: Items
    """A text, or the conversation's items."""
    instructions: Text | None = None
    """A system message before the input."""
    n: Literal[1] = 1
    max_output_tokens: AtLeastOne | None = None
    """Absent: as many as fit into the context."""
    tools: list[FunctionTool] = []
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionChoice | None = None
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    """The output's form."""
    include: list[Text] = []
    """`message.output_text.logprobs`; others name what does not occur here."""
    top_logprobs: Alternatives | None = None
    metadata: Annotated[dict[str, Text], Field(max_length=16)] = {}
    """Returned with the response."""
    store: bool = False
    """Nothing is stored, whatever it says; the response says `store: false`."""
    max_tool_calls: Annotated[int, within(ranges.COUNT)] | None = None
    """Limits only tools that run at the server, of which there are none."""
    reasoning: ReasoningOptions = ReasoningOptions()
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    previous_response_id: Text | None = None
    """Refused, because nothing is stored."""
    conversation: Any = None
    """Refused, because nothing is stored."""
    prompt: None = None
    return_token_ids: Literal[False] = False

    @model_validator(mode="after")
    def _nothing_is_stored(self) -> Self:
        for field in ("previous_response_id", "conversation"):
            if getattr(self, field) is not None:
                raise InvalidRequest(field, f"responses are not stored here; {_WAY_OUT}")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs is not None

    def chat(self) -> ChatRequest:
        """The same request as a chat. Errors name the chat's fields (RENAMED)."""
        given = {
            name: getattr(self, name)
            for name in SharedFields.model_fields
            if name in self.model_fields_set
        }
        choice = self.tool_choice
        return ChatRequest.model_validate(
            {
                **given,
                "messages": list(messages_of(self.instructions, self.input)),
                "max_completion_tokens": self.max_output_tokens,
                "logprobs": self.wants_logprobs,
                "top_logprobs": self.top_logprobs,
                "tools": [tool.for_chat for tool in self.tools],
                "tool_choice": (
                    choice.for_chat if isinstance(choice, NamedFunctionChoice) else choice
                ),
                "parallel_tool_calls": self.parallel_tool_calls,
                "response_format": self.text.format.for_chat,
            }
        )

    @property
    def echoed(self) -> dict[str, Any]:
        """What the response repeats of the request."""
        choice = self.tool_choice or ("auto" if self.tools else "none")
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": self.reasoning.model_dump(),
            "service_tier": "default",
            "background": False,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": self.text.format.echoed, "verbosity": self.text.verbosity},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": self.truncation,
            "user": self.user,
        }


RENAMED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}
"""A chat's fields by their names in this API."""

"""OpenAI's Responses API: its request, and the chat that it is served as.

Nothing is stored: the whole conversation comes with each request.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from cluster.config.section import within
from deployments.ingress.fields import Alternatives, AtLeastOne, Fields, Text
from deployments.ingress.requests import ChatRequest, SharedFields
from deployments.ingress.tools import FunctionName, Schema
from engine.errors import InvalidRequest
from policies import ranges

LOGPROBS = "message.output_text.logprobs"
_WAY_OUT = "send the items of the conversation so far in input"


class TextItem(Fields):
    type: Literal["input_text", "output_text"]
    text: Text

    # Copied by clients from an output.
    annotations: list[Any] = []
    logprobs: list[Any] = []


def _text_items(given: object) -> object:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


Texts = Annotated[
    list[TextItem], BeforeValidator(_text_items, json_schema_input_type=Text | list[TextItem])
]


class MessageItem(Fields):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts

    # Copied by clients from an output.
    id: Text | None = None
    status: Text | None = None
    phase: Text | None = None


class FunctionCallItem(Fields):
    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text

    # Copied by clients from an output.
    id: Text | None = None
    status: Text | None = None


class FunctionOutputItem(Fields):
    type: Literal["function_call_output"]
    call_id: Text
    output: Texts

    # Copied by clients from an output.
    id: Text | None = None
    status: Text | None = None


class ReasoningText(Fields):
    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Fields):
    type: Literal["reasoning"]
    content: list[ReasoningText] = []
    summary: list[ReasoningText] = []
    """Instead of a content that the server did not reveal."""

    # Copied by clients from an output.
    id: Text | None = None
    status: Text | None = None
    encrypted_content: None = None


def _kind_of_item(item: object) -> object:
    """A message may leave its type out."""
    if isinstance(item, dict):
        return item.get("type") or "message"
    return getattr(item, "type", None)


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind_of_item,
        custom_error_type="item_type",
        custom_error_message="type: only message, function_call, function_call_output and "
        "reasoning are supported",
    ),
]


def _items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


Items = Annotated[
    list[Item],
    Field(min_length=1),
    BeforeValidator(_items, json_schema_input_type=Text | list[Item]),
]


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
        """The same request as a chat. Raises InvalidRequest with the names of this API."""
        given = {
            name: getattr(self, name)
            for name in SharedFields.model_fields
            if name in self.model_fields_set
        }
        choice = self.tool_choice
        try:
            return ChatRequest.model_validate(
                {
                    **given,
                    "messages": list(_messages(self.instructions, self.input)),
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
        except InvalidRequest as error:
            raise renamed(error) from None


_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}


def renamed(error: InvalidRequest) -> InvalidRequest:
    """A chat's error with the field's name in this API."""
    return InvalidRequest(_NAMES.get(error.field, error.field), error.problem)


def _messages(instructions: str | None, items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """The items as messages: reasoning, text and calls of one turn of the assistant are one."""
    if instructions is not None:
        yield {"role": "system", "content": instructions}
    turn: dict[str, Any] = {}
    for item in items:
        match item:
            case ReasoningItem():
                if turn.keys() - {"role", "reasoning"}:
                    yield turn
                    turn = {}
                parts = item.content or item.summary
                turn = {
                    "role": "assistant",
                    "reasoning": turn.get("reasoning", "") + "".join(part.text for part in parts),
                }
            case MessageItem(role="assistant"):
                if turn.keys() - {"role", "reasoning"}:
                    yield turn
                    turn = {}
                turn = {"role": "assistant", **turn, "content": _text(item.content)}
            case FunctionCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                turn = {"role": "assistant", **turn}
                turn["tool_calls"] = [*turn.get("tool_calls", []), call]
            case FunctionOutputItem() | MessageItem():
                if turn:
                    yield turn
                    turn = {}
                yield _other_message(item)
    if turn:
        yield turn


def _other_message(item: FunctionOutputItem | MessageItem) -> dict[str, Any]:
    if isinstance(item, MessageItem):
        return {"role": item.role, "content": _text(item.content)}
    return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}


def _text(items: Sequence[TextItem]) -> str:
    return "".join(item.text for item in items)

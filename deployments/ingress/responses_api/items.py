"""The items of a conversation in the Responses API, and the chat's messages that they stand for."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from deployments.ingress.requests.fields import MAX_MESSAGES, Fields, JsonList, Text

_LIST = Field(fail_fast=True, max_length=MAX_MESSAGES)


class TextItem(Fields):
    type: Literal["input_text", "output_text"]
    """Whose text it is makes no difference."""
    text: Text
    """The text."""
    annotations: JsonList = []
    """Copied from an output; without effect."""
    logprobs: JsonList = []
    """Copied from an output; without effect."""


def _text_items(given: object) -> object:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


Texts = Annotated[
    list[TextItem],
    _LIST,
    BeforeValidator(_text_items, json_schema_input_type=Text | list[TextItem]),
]


class OutputItem(Fields):
    """What clients copy from an output."""

    id: Text | None = None
    """Copied from an output; without effect."""
    status: Text | None = None
    """Copied from an output; without effect."""


class MessageItem(OutputItem):
    type: Literal["message"] = "message"
    """May be left out."""
    role: Literal["user", "assistant", "system", "developer"]
    """The author; `developer` is rendered as `system` unless the chat template knows it."""
    content: Texts
    """A text, or its parts."""
    phase: Text | None = None
    """Copied from an output; without effect."""


class FunctionCallItem(OutputItem):
    type: Literal["function_call"]
    """A call that the model has made."""
    call_id: Text
    """To which the function's output refers."""
    name: Text
    """The function that was called."""
    arguments: Text
    """As the model wrote them."""


class FunctionOutputItem(OutputItem):
    type: Literal["function_call_output"]
    """What a function has returned."""
    call_id: Text
    """The call's id."""
    output: Texts
    """A text, or its parts."""


class ReasoningText(Fields):
    type: Literal["reasoning_text", "summary_text"]
    """Reasoning, or a summary of it."""
    text: Text
    """The text."""


class ReasoningItem(OutputItem):
    type: Literal["reasoning"]
    """Reasoning of the model."""
    content: Annotated[list[ReasoningText], _LIST] = []
    """The reasoning."""
    summary: Annotated[list[ReasoningText], _LIST] = []
    """Instead of a content that the server did not reveal."""
    encrypted_content: None = None
    """Only null."""


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
    Field(min_length=1, fail_fast=True, max_length=MAX_MESSAGES),
    BeforeValidator(_items, json_schema_input_type=Text | list[Item]),
]


def messages_of(instructions: str | None, items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """The items as messages: adjacent ones of the assistant are one."""
    if instructions is not None:
        yield {"role": "system", "content": instructions}
    for by_assistant, run in groupby(items, _is_of_assistant):
        if by_assistant:
            yield _turn(list(run))
        else:
            yield from map(_message, run)


def _is_of_assistant(item: Item) -> bool:
    if isinstance(item, MessageItem):
        return item.role == "assistant"
    return not isinstance(item, FunctionOutputItem)


def _turn(items: Sequence[Item]) -> dict[str, Any]:
    """The assistant's message of its reasoning, text and calls."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    for item in items:
        match item:
            case ReasoningItem():
                reasoning.append(_text(item.content or item.summary))
            case MessageItem():
                content.append(_text(item.content))
            case FunctionCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                calls.append({"id": item.call_id, "type": "function", "function": function})
    return {
        "role": "assistant",
        "content": "".join(content),
        **({"reasoning": "".join(reasoning)} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _message(item: Item) -> dict[str, Any]:
    match item:
        case MessageItem():
            return {"role": item.role, "content": _text(item.content)}
        case FunctionOutputItem():
            return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
    raise TypeError(f"{type(item).__name__} is no message by itself")


def _text(parts: Sequence[TextItem] | Sequence[ReasoningText]) -> str:
    return "".join(part.text for part in parts)

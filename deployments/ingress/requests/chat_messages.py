"""The messages of a conversation, and what a chat template is given for them."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from deployments.ingress.requests.fields import MAX_MESSAGES, Fields, Text
from deployments.ingress.requests.json_bounds import parsed, shallow
from deployments.ingress.requests.unsupported import MESSAGE, Unsupported

TemplateMessage = dict[str, Any]
_ITEMS = Field(fail_fast=True, max_length=MAX_MESSAGES)

_MEDIA = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "videos",
    "file": "files",
}
"""The content parts beside text that OpenAI's API and vLLM have."""


class TextPart(Fields):
    type: Literal["text"]
    """Only texts."""
    text: Text
    """The text; those of a message are joined."""


class CalledFunction(Fields):
    name: Text
    """The function that was called."""
    arguments: Text = ""
    """As the model wrote them: a JSON object, if it made no mistake."""

    @property
    def for_template(self) -> dict[str, Any]:
        """Templates expect an object, as vLLM passes it on; a text that is none stays a text."""
        try:
            arguments = shallow(parsed((self.arguments or "{}").encode()))
            json.dumps(arguments, ensure_ascii=False).encode()  # no half of a surrogate pair
        except (ValueError, RecursionError):
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


class ToolCall(Fields):
    id: Text
    """To which a tool's message refers."""
    type: Literal["function"] = "function"
    """Only functions are called."""
    function: CalledFunction
    """The call."""


class Message(Fields):
    unsupported: ClassVar[Mapping[str, Unsupported]] = MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """`developer` is rendered as `system` unless the chat template knows it."""
    content: Text | Annotated[list[TextPart], _ITEMS] | None = None
    """May be absent from an assistant's message with tool calls."""
    name: Text | None = None
    """Passed on to the template."""
    tool_calls: Annotated[list[ToolCall], _ITEMS] | None = None
    """The calls of an assistant's message."""
    tool_call_id: Text | None = None
    """The call that a tool's message answers."""
    reasoning: Text | None = None
    """The reasoning of an assistant's message, for templates that show it."""
    reasoning_content: Text | None = None
    """Another name of `reasoning`."""
    annotations: list[Any] | None = None
    """Copied by clients from an answer; without effect."""

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: object) -> object:
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in _MEDIA:
                raise ValueError(f"{_MEDIA[kind]} are not supported by this model; send text")
        return content

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: a message of role {self.role} has none")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id: a message of role tool needs it, and no other has it")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: only an assistant's message with tool_calls may have none")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def for_template(self) -> TemplateMessage:
        message: TemplateMessage = {"role": self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": call.type, "function": call.function.for_template}
                for call in self.tool_calls
            ]
        reasoning = self.reasoning if self.reasoning is not None else self.reasoning_content
        if reasoning is not None:
            message["reasoning"] = message["reasoning_content"] = reasoning
        return message


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True, max_length=MAX_MESSAGES)]

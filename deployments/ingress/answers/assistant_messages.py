"""Content, reasoning and tool calls in the form of OpenAI's chat messages."""

from collections.abc import Sequence
from typing import Any

from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Reasoning,
)


def message_of(deltas: Sequence[Delta]) -> dict[str, Any]:
    """A whole message of the assistant."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        match delta:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(_, identity, name):
                function = {"name": name, "arguments": ""}
                calls.append({"id": identity, "type": "function", "function": function})
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    return {
        "role": "assistant",
        "content": None if calls and not content else "".join(content),
        "refusal": None,
        **({"reasoning": "".join(reasoning)} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def delta_bodies(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """What each delta adds to a streamed message, for a chunk of its own."""
    return [_body(delta) for delta in deltas]


def _body(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning": text}
        case CallStart(index, identity, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": identity, "type": "function", "function": function}
            return {"content": None, "tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

"""The events of a streamed response in OpenAI's Responses API, and the response that they build."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Reasoning,
)

Event = dict[str, Any]
Item = dict[str, Any]


class ResponseEvents:
    """Each method returns the events that it causes; `response` is the response so far."""

    def __init__(self, response: dict[str, Any]) -> None:
        """`response`: the fields that do not depend on the output."""
        self.response = {
            **response,
            "status": "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self._sequence = 0
        self._item: Item | None = None
        """The item that grows."""
        self._logprobs: list[Any] = []
        """Those of tokens whose text is still to come."""

    def start(self) -> list[Event]:
        return [self._lifecycle("response.created"), self._lifecycle("response.in_progress")]

    def add(self, deltas: Sequence[Delta], logprobs: Sequence[Any] = ()) -> list[Event]:
        """`logprobs`: of the tokens that the deltas come from; only those that add to the message
        are shown."""
        if not deltas or any(isinstance(delta, Content) for delta in deltas):
            self._logprobs += logprobs
        else:
            self._logprobs.clear()
        events: list[Event] = []
        for delta in deltas:
            match delta:
                case Content(text):
                    events += self._open("message")
                    events.append(self._grow("response.output_text.delta", text))
                case Reasoning(text):
                    events += self._open("reasoning")
                    events.append(self._grow("response.reasoning_text.delta", text))
                case CallStart(_, call_id, name):
                    events += self._close()
                    events += self._begin(
                        "function_call", "fc", call_id=call_id, name=name, arguments=""
                    )
                case CallArguments(_, text):
                    events.append(self._grow("response.function_call_arguments.delta", text))
        return events

    def complete(self, usage: dict[str, Any], **extensions: Any) -> list[Event]:
        events = self._close()
        self.response |= {"status": "completed", "completed_at": int(time.time())}
        return [*events, self._end("response.completed", usage, extensions)]

    def stop_short(self, usage: dict[str, Any], **extensions: Any) -> list[Event]:
        """The output ends at the limit of its tokens."""
        events = self._close("incomplete")
        self.response |= {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        }
        return [*events, self._end("response.incomplete", usage, extensions)]

    def fail(self, code: str, message: str) -> Event:
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        return self._lifecycle("response.failed")

    def _end(self, kind: str, usage: dict[str, Any], extensions: dict[str, Any]) -> Event:
        self.response |= {"usage": usage, **extensions}
        return self._lifecycle(kind)

    def _open(self, kind: str) -> list[Event]:
        """Begins an item with one part of text, unless such an item grows already."""
        if self._item is not None and self._item["type"] == kind:
            return []
        events = self._close()
        if kind == "message":
            events += self._begin("message", "msg", role="assistant", content=[])
        else:
            events += self._begin("reasoning", "rs", summary=[], content=[])
        self._grown["content"].append(_part(kind))
        return [
            *events,
            self._event("response.content_part.added", content_index=0, part=_part(kind)),
        ]

    def _begin(self, kind: str, prefix: str, **fields: Any) -> list[Event]:
        item = {
            "id": f"{prefix}_{uuid.uuid4().hex}",
            "type": kind,
            "status": "in_progress",
            **fields,
        }
        self.response["output"].append(item)
        self._item = item
        return [self._event("response.output_item.added", of_item=False, item=_copy(item))]

    def _grow(self, kind: str, text: str) -> Event:
        item = self._grown
        if item["type"] == "function_call":
            item["arguments"] += text
            return self._event(kind, delta=text)
        part = item["content"][0]
        part["text"] += text
        if item["type"] == "reasoning":
            return self._event(kind, content_index=0, delta=text)
        logprobs, self._logprobs = self._logprobs, []
        part["logprobs"] += logprobs
        return self._event(kind, content_index=0, delta=text, logprobs=logprobs)

    def _close(self, status: str = "completed") -> list[Event]:
        """Ends the item that grows."""
        item = self._item
        if item is None:
            return []
        item["status"] = status
        if item["type"] == "function_call":
            done = self._event(
                "response.function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
            )
            events = [done]
        else:
            part = item["content"][0]
            text = {"text": part["text"]}
            kind = "response.reasoning_text.done"
            if item["type"] == "message":
                part["logprobs"] += self._logprobs
                self._logprobs = []
                text["logprobs"] = part["logprobs"]
                kind = "response.output_text.done"
            events = [
                self._event(kind, content_index=0, **text),
                self._event("response.content_part.done", content_index=0, part=dict(part)),
            ]
        events.append(self._event("response.output_item.done", of_item=False, item=_copy(item)))
        self._item = None
        return events

    @property
    def _grown(self) -> Item:
        if self._item is None:
            raise RuntimeError("no item has begun")
        return self._item

    def _lifecycle(self, kind: str) -> Event:
        response = {**self.response, "output": [_copy(item) for item in self.response["output"]]}
        return self._numbered({"type": kind, "response": response})

    def _event(self, kind: str, of_item: bool = True, **fields: Any) -> Event:
        """An event about the item that grows. `of_item`: it names the item by its id."""
        identity = {"item_id": self._grown["id"]} if of_item else {}
        index = {"output_index": len(self.response["output"]) - 1}
        return self._numbered({"type": kind, **identity, **index, **fields})

    def _numbered(self, event: Event) -> Event:
        event["sequence_number"] = self._sequence
        self._sequence += 1
        return event


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _copy(item: Item) -> Item:
    """The item as it is now: it goes on growing."""
    content = {"content": [dict(part) for part in item["content"]]} if "content" in item else {}
    return {**item, **content}

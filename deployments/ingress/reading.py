"""Reads clients' requests, large ones in a thread, so that the event loop goes on serving
streams. Validation alone takes up to a second. Fields that have no effect are named to the client,
so that nothing is ignored silently."""

import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from json import JSONDecodeError
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from deployments.ingress.errors import ApiError
from deployments.ingress.requests.completions import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from deployments.ingress.requests.fields import Fields
from deployments.ingress.requests.json_bounds import TooManyValues, json_length, parsed
from deployments.ingress.responses_api.request import ResponsesRequest
from deployments.ingress.tokenizer import Tokens
from deployments.ingress.turns import Turns

HEADER = "x-spindle-ignored"
"""A response's header that names the fields of its request without effect."""
STRICT_HEADER = "x-spindle-strict"
"""A request's header: with `1`, fields without effect are refused."""

_LOG = logging.getLogger(__name__)
_MAX_LOGGED = 256
_MAX_NAMES = 16
_MAX_NAME = 64


def ignored_fields(request: Fields, tokens: Tokens) -> list[str]:
    """The names of fields without effect; those of inner objects have their path, without the
    indexes of lists."""
    names = dict.fromkeys(_walk(request, ""))
    if isinstance(request, ChatRequest | ResponsesRequest):
        if isinstance(request, ChatRequest):
            chat, effort, verbosity = request, "reasoning_effort", "verbosity"
        else:
            chat, effort, verbosity = request.chat, "reasoning.effort", "text.verbosity"
        used = tokens.used_variables(chat.template_variables)
        unused = [name for name in chat.chat_template_kwargs if name not in used]
        names |= dict.fromkeys(f"chat_template_kwargs.{name}" for name in unused)
        if chat.reasoning_effort and not used.keys() & {"reasoning_effort", "enable_thinking"}:
            names[effort] = None
        if chat.verbosity and "verbosity" not in used:
            names[verbosity] = None
        use = request.tool_use
        if use.may_call and not use.is_enforced and not tokens.shows_tools:
            names["tools"] = None
    return list(names)


def _walk(fields: Fields, path: str) -> Iterator[str]:
    unknown = () if fields.passes_unknown_on else fields.model_extra or ()
    for name in (*unknown, *fields.without_effect):
        yield path + name
    for name in type(fields).model_fields:
        value = getattr(fields, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Fields):
                yield from _walk(inner, f"{path}{name}.")


def kind_of(fields: Mapping[str, Any]) -> type[GenerationRequest]:
    """A request with `messages` is a chat, any other a completion."""
    if not isinstance(fields, Mapping):
        raise ApiError(400, "the request must be a mapping of fields, such as model and prompt")
    return ChatRequest if "messages" in fields else CompletionRequest


def shown(names: Sequence[str]) -> str:
    """The names as one header's value: short, in printable ASCII, commas only between names."""
    listed = [re.sub(r"[^!-+\--~]", "?", name)[:_MAX_NAME] for name in names[:_MAX_NAMES]]
    more = len(names) - len(listed)
    return ", ".join([*listed, *([f"and {more} more"] if more else [])])


class IgnoredFields:
    """What happens to requests that have fields without effect."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def check(self, names: Sequence[str], strict: bool = False) -> None:
        """`names`: of a request's fields without effect. Logs each once; raises ApiError 400
        instead if `strict`."""
        if names and strict:
            name = shown(names[:1])
            problem = f"has no effect here; leave it out, or send no `{STRICT_HEADER}`"
            raise ApiError(400, f"{name}: {problem}", names[0].partition(".")[0][:_MAX_NAME])
        for name in map(shown, ([name] for name in names[:_MAX_NAMES])):
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                _LOG.warning("a field of requests has no effect: %s", name)


_LARGE = 8192
"""Bytes of a body, or parts of given fields, from which on reading may take more than some
milliseconds."""

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Read(NamedTuple):
    request: Any
    ignored: list[str]
    """The names of its fields without effect."""


class Reader:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._turns = Turns()

    async def json(self, text: bytes, client: str) -> Any:
        """`client`: whose turn it takes. Raises ApiError, as do the other methods."""
        return await self._aside(lambda: _parsed(text), len(text), client)

    async def body(self, kind: type[Fields], body: bytes, client: str) -> Read:
        return await self._aside(lambda: self._read(kind, _parsed(body)), len(body), client)

    async def fields(self, fields: Mapping[str, Any], client: str, **defaults: Any) -> Read:
        """`fields`: what a caller by handle gives, or gRPC. `defaults`: of absent ones."""
        kind, size = kind_of(fields), json_length(fields, _LARGE)
        return await self._aside(lambda: self._read(kind, {**defaults, **fields}), size, client)

    def _read(self, kind: type[Fields], fields: Any) -> Read:
        try:
            request = kind.model_validate(fields)
        except ValidationError as error:
            raise ApiError.of(error) from None
        if isinstance(request, ResponsesRequest):
            request.prepare()
        return Read(request, ignored_fields(request, self._tokens))

    async def _aside(self, work: Callable[[], T], size: int, client: str) -> T:
        if size < _LARGE:
            return work()
        # One piece after the other: several threads would take turns with the event loop.
        return await self._turns.run(work, client, is_long=True)


def _parsed(text: bytes) -> Any:
    try:
        return parsed(text)
    except TooManyValues as error:
        raise ApiError(400, f"body: {error}") from None
    except JSONDecodeError as error:
        raise ApiError(400, f"body: the body is no JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ApiError(
            400,
            "body: cannot be read as JSON; send UTF-8, nested less than a thousand levels",
        ) from None


def route_reading(reader: Reader, is_json: Callable[[Request], bool]) -> type[APIRoute]:
    """FastAPI's route, but bodies are read by the reader. FastAPI lets a value pass that is of the
    endpoint's type already. `request.state.ignored` has the names of fields without effect."""

    class _ReadRequest(Request):
        value: Any = None

        async def json(self) -> Any:
            return self.value

    class _Route(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle
            kind = self.body_field.field_info.annotation
            assert isinstance(kind, type)
            assert issubclass(kind, Fields)

            async def read_and_handle(given: Request) -> Response:
                request = _ReadRequest(given.scope, given.receive)
                if is_json(request) and (body := await request.body()):
                    tenant = request.state.client.tenant
                    request.value, request.state.ignored = await reader.body(kind, body, tenant)
                return await handle(request)

            return read_and_handle

    return _Route

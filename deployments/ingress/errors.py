"""The API's error responses, in the form of OpenAI's error object; errors of validation with
the field's path."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException

from deployments.ingress.requests.unsupported import UNSUPPORTED
from engine.errors import InvalidRequest

_MAX_QUOTE = 100
_MAX_PATH = 100
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_TYPE_NAMES = frozenset(("str", "int", "float", "bool", "list", "dict", "constrained"))
"""Parts of paths that name a kind of value and no field."""

_TEXTS: Mapping[str, str] = {
    "missing": "is required",
    "none_required": "is not supported here; leave it out",
    "extra_forbidden": "there is no such field; leave it out",
    "union_tag_not_found": "needs a type",
    "union_tag_invalid": "must be one of {expected_tags}",
}
"""In place of pydantic's own words, which repeat what was sent or do not name the way out."""
_SUBJECT = re.compile(r"^\w+ should ")


def quoted(text: str) -> str:
    """What a client has sent, for a message, shortened."""
    return repr(text if len(text) <= _MAX_QUOTE else text[: _MAX_QUOTE - 3] + "...")


def first_problem(errors: Sequence[Any], skip: int = 0) -> tuple[str | None, str]:
    """The field at fault and a message, from pydantic's errors. `skip`: how many parts precede each
    path."""
    located = [(tuple(error["loc"][skip:]), error) for error in errors]
    begin = _places(located[0][0])
    same = [(path, error) for path, error in located if path[: len(begin)] == begin]
    # Where a value may be of several kinds, there are errors for each; one that is not about the
    # kind itself belongs to the kind that was meant.
    meant = [(path, error) for path, error in same if not str(error["type"]).endswith("_type")]
    # A list of words is one kind as well, which an object for another kind is not about.
    inner = [(path, error) for path, error in meant if error["type"] != "literal_error"]
    path, error = (inner or meant or same)[0]
    texts = [_text(error)] if meant else dict.fromkeys(_text(error) for _, error in same)
    problem = " or ".join(texts)
    if error["type"] == UNSUPPORTED:
        path = (*path, error["ctx"]["field"])
    # For a body that is no JSON, pydantic's path is the offset of the error.
    field = path[0] if path and isinstance(path[0], str) else None
    if field is None:
        return None, f"body: {problem}"
    where = ".".join(str(part) for i, part in enumerate(path) if i == 0 or _is_place(part))
    return field[:_MAX_PATH], f"{where[:_MAX_PATH]}: {problem}"


def _places(path: Sequence[object]) -> tuple[object, ...]:
    """The path up to where it names a kind of value."""
    end = next((i for i, part in enumerate(path) if i and not _is_place(part)), len(path))
    return tuple(path[:end])


def _is_place(part: object) -> bool:
    """Whether a part of a path is a field or an index, and not a kind of value."""
    if isinstance(part, int):
        return True
    return _FIELD.fullmatch(str(part)) is not None and part not in _TYPE_NAMES


def _text(error: Any) -> str:
    text = _TEXTS.get(error["type"])
    if text is not None:
        return text.format(**error.get("ctx", {}))
    return _SUBJECT.sub("must ", str(error["msg"]).removeprefix("Value error, "))


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}
_WAYS_OUT = {
    404: "there is no such path; GET /docs shows those that there are",
    405: "the path takes another method, which the header `Allow` names",
}
_RETRY_AFTER_S = {429: 1, 503: 1}


class ErrorDetail(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """Names the field, its limit and the way out."""
    type: str
    """As in OpenAI's API."""
    param: str | None
    """The field."""
    code: str | None
    """Such as `context_length_exceeded`."""
    status: int
    """The HTTP status."""


class ErrorAnswer(BaseModel):
    """The body of every error, for the OpenAPI document."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends one request with an HTTP status; `param` names the field at fault."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.logged = False
        """Whether the log has the request's line already."""

    @classmethod
    def of(cls, error: Exception) -> "ApiError":
        """Converts an exception raised by a request into the client's error response."""
        match error:
            case ApiError():
                return error
            case InvalidRequest():
                return cls(400, str(error), error.field)
            case RequestValidationError():
                return cls._of_validation(error.errors(), skip=1)  # `body` comes first
            case ValidationError():
                return cls._of_validation(error.errors(include_url=False, include_input=False))
            case HTTPException():
                detail = _WAYS_OUT.get(error.status_code, str(error.detail))
                return cls(error.status_code, detail)
        raise error

    @classmethod
    def internal(cls, request: str = "") -> "ApiError":
        """A defect in Spindle: the client learns only that the request failed; the details are in
        the log."""
        name = f"request {request}" if request else "the request"
        return cls(500, f"{name} failed inside the server, whose log says why")

    @classmethod
    def _of_validation(cls, errors: Sequence[Any], skip: int = 0) -> "ApiError":
        """`param` is the field of the request, and the message has the full path."""
        field, message = first_problem(errors, skip)
        return cls(400, message, field)

    def body(self) -> dict[str, Any]:
        """The error body. `status` is Spindle's addition, for callers by handle, which receive no
        HTTP status."""
        return {
            "error": {
                # The message may quote the client's input, which may contain characters that UTF-8
                # cannot encode.
                "message": self.message.encode("utf-8", "backslashreplace").decode(),
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
                "status": self.status,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        wait = _RETRY_AFTER_S.get(self.status)
        return {} if wait is None else {"Retry-After": str(wait)}

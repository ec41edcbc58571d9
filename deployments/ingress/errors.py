"""What the API answers when it does not serve a request: OpenAI's error object."""

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from engine.errors import InvalidRequest

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}
_RETRY_AFTER_S = {429: 1, 503: 1}


class ApiError(Exception):
    """Ends one request with an HTTP status; `param` names the field that it is about."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @classmethod
    def of(cls, error: Exception) -> "ApiError":
        """How an error that a request has raised is told to its client."""
        match error:
            case ApiError():
                return error
            case InvalidRequest():
                return cls(400, str(error), error.field)
            case RequestValidationError():
                return cls._of_fields(error.errors(), skip=1)  # `body` comes first
            case ValidationError():
                return cls._of_fields(error.errors(include_url=False, include_context=False))
            case HTTPException():
                return cls(error.status_code, str(error.detail))
        raise error

    @classmethod
    def of_defect(cls, request: str = "") -> "ApiError":
        """Of ours, over which a request fails: the log says which, and the client that it does."""
        name = f"request {request}" if request else "the request"
        return cls(500, f"{name} failed inside the server, whose log says why")

    @classmethod
    def _of_fields(cls, errors: Sequence[Any], skip: int = 0) -> "ApiError":
        """The first of pydantic's: `param` is the field of the request, the message says where in
        it."""
        first = errors[0]
        path = first["loc"][skip:]
        where = ".".join(map(str, path)) or "body"
        # Of a body that is no JSON, the path is the place where it ends to be.
        param = path[0] if path and isinstance(path[0], str) else None
        return cls(400, f"{where}: {first['msg']}", param)

    def body(self) -> dict[str, Any]:
        """`status` is ours, for callers over a handle, who see no HTTP status."""
        return {
            "error": {
                # What a client has sent may be quoted here, and need not be encodable.
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

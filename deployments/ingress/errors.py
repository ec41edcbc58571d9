"""The API's error responses, in the form of OpenAI's error object."""

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from deployments.ingress.requests.problems import first_problem
from engine.errors import InvalidRequest

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}
_RETRY_AFTER_S = {429: 1, 503: 1}


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
                return cls(error.status_code, str(error.detail))
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

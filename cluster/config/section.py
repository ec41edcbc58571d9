"""The common base of all config sections, and the form of their errors."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.ranges import Range


class Section(BaseModel):
    # Errors never contain the input, which may be an API key.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def within(limits: Range) -> Any:
    """A range as the bounds of a field, for Annotated."""
    if limits.above:
        return Field(gt=limits.least, le=limits.most)
    return Field(ge=limits.least, le=limits.most)


def problems(error: ValidationError) -> Iterator[str]:
    """One line per invalid field: its path in the file, and the problem."""
    for problem in error.errors(include_url=False, include_input=False):
        if problem["type"] == "default_factory_not_called":
            continue  # caused by another invalid field, which has its own line
        field = ".".join(map(str, problem["loc"]))
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "there is no such field"
        yield f"{field}: {what}" if field else what

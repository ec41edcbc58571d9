"""What every section of the config has in common, and how its errors read."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.ranges import Range


class Section(BaseModel):
    # An error never repeats its input: that may be an API key.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def within(limits: Range) -> Any:
    """A field's bounds, for Annotated."""
    if limits.above:
        return Field(gt=limits.least, le=limits.most)
    return Field(ge=limits.least, le=limits.most)


def problems(error: ValidationError) -> Iterator[str]:
    """One line for each bad field: its path in the file, and what is wrong with it."""
    for problem in error.errors(include_url=False, include_input=False):
        if problem["type"] == "default_factory_not_called":
            continue  # follows from another bad field, which has a line of its own
        field = ".".join(map(str, problem["loc"]))
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "there is no such field"
        yield f"{field}: {what}" if field else what

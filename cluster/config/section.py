"""The common base of all config sections, the quantities in several of them, and the form of their
errors."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from policies import ranges


class Section(BaseModel):
    # Errors never contain the input, which may be an API key.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def within(limits: ranges.Range) -> Any:
    """A range as the bounds of a field, for Annotated."""
    if limits.above:
        return Field(gt=limits.least, le=limits.most)
    return Field(ge=limits.least, le=limits.most)


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"{gpus} is more than one GPU and no whole number of them")
    return gpus


Gpus = Annotated[float, within(ranges.COUNT), AfterValidator(_whole_or_part)]
Cpus = Annotated[float, within(ranges.COUNT)]
Count = Annotated[int, within(ranges.COUNT)]
AtLeastOne = Annotated[int, within(ranges.AT_LEAST_ONE)]


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

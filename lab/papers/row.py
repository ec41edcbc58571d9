"""A row of a paper's figure or table: the runs that it compares, and what the paper prints."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic import model_validator as checked

Scalar = str | int | float
Interval = tuple[float, float]

BEST = "best"
_NEAR = 1.1
"""`near` another system means within 10% of it."""
_WITHIN = 1.15
"""A printed number is reproduced within 15%."""


def _cited(source: str) -> str:
    if not re.search(r"§|Fig\. \d|Table \d|Appendix|not specified", source):
        raise ValueError(f"cites no section and does not say `not specified`: {source!r}")
    return source


Source = Annotated[str, AfterValidator(_cited)]


class RowTemplate(BaseModel):
    """Written out as one row per value of the figure's axes in its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    """Its name after paper and figure, with axes in braces."""
    metric: str
    of: str
    """The arm that is measured."""
    against: tuple[str, ...] = ()
    """Arms that it is compared with, of several the best."""
    value: Literal["plain", "ratio", "difference", "share_above", "share_below"]
    """Shares: of the cases in `across` whose ratio is above or below 1."""
    case: Mapping[str, Scalar] = {}
    against_case: Mapping[str, Scalar] = {}
    """What differs in the case of `against`. BEST: the value of the axis at which that is best."""
    only: Mapping[str, tuple[Scalar, ...]] = {}
    """Values of an axis, where not all of the figure's."""
    across: tuple[str, ...] = ()
    """Axes that are reduced to one number."""
    reduce: Literal["mean", "min", "max", "argmin", "argmax"] | None = None
    """How; shares need none."""
    unit: str
    printed: float | None = None
    quote: str
    """The paper's words, or `only plotted`."""
    direction: Literal["above", "below", "near"] | None = None
    """The claimed side of 1 (ratio) or 0 (difference)."""
    accept: Interval | None = None
    """The accepted interval, where the claim's own words say another than README.md's rule."""
    standing: Literal["calibrated", "circular", "repeats"] | None = None
    """Why it is not counted as evidence (README.md); None: it is."""
    source: Source

    @checked(mode="after")
    def _consistent(self) -> Self:
        if (self.value == "plain") != (not self.against):
            raise ValueError(f"{self.row}: `against` goes with a value of two sides, never plain")
        shares = self.value.startswith("share_")
        if bool(self.across) != (shares or self.reduce is not None):
            raise ValueError(f"{self.row}: `across` goes with `reduce` or with a share")
        if self.value == "plain" and self.direction and self.accept is None:
            raise ValueError(f"{self.row}: a plain value has no direction; give `accept`")
        if not self._agrees():
            raise ValueError(f"{self.row}: printed {self.printed} is not {self.direction}")
        return self

    def points(self) -> Iterator[tuple[str, Scalar]]:
        """Every axis and value in its own fields."""
        yield from self.case.items()
        yield from (point for point in self.against_case.items() if point[1] != BEST)
        yield from ((axis, value) for axis, values in self.only.items() for value in values)

    def _agrees(self) -> bool:
        """Whether the printed number lies on the claimed side."""
        if self.printed is None or self.value not in ("ratio", "difference"):
            return True
        neutral = 1.0 if self.value == "ratio" else 0.0
        sides = {"above": self.printed > neutral, "below": self.printed < neutral}
        return self.direction is not None and sides.get(self.direction, True)


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    """Unique among all rows."""
    figure: str
    template: RowTemplate
    case: Mapping[str, Scalar]
    """Machine, dataset, workload and a value of each axis that is not reduced."""
    sweep: Mapping[str, tuple[Scalar, ...]]
    """Values of the reduced axes."""

    @property
    def accepted(self) -> Interval | None:
        """The values that count as reproduced; None where the paper claims nothing."""
        claim = self.template
        if claim.accept is not None:
            return claim.accept
        if claim.printed is None:
            return _side(claim)
        if claim.direction == "near" and claim.value == "ratio":
            return claim.printed / _NEAR, claim.printed * _NEAR
        low, high = claim.printed / _WITHIN, claim.printed * _WITHIN
        least, most = _side(claim) or (low, high)
        return max(low, least), min(high, most)

    def reproduced(self, value: float) -> bool | None:
        """None: not specified by the paper."""
        if self.accepted is None:
            return None
        low, high = self.accepted
        return low <= value <= high


def _side(claim: RowTemplate) -> Interval | None:
    neutral = 0.0 if claim.value == "difference" else 1.0
    intervals: dict[str | None, Interval] = {
        "above": (math.nextafter(neutral, math.inf), math.inf),
        "below": (-math.inf, math.nextafter(neutral, -math.inf)),
        "near": (1.0 / _NEAR, _NEAR),
    }
    return intervals.get(claim.direction)


def written_out(
    paper: str,
    figure: str,
    template: RowTemplate,
    case: Mapping[str, Scalar],
    over: Mapping[str, tuple[Scalar, ...]],
) -> Iterator[Row]:
    """The template's rows, over every axis that it does not reduce."""
    axes = {axis: template.only.get(axis, values) for axis, values in over.items()}
    sweep = {axis: axes[axis] for axis in template.across}
    free = {axis: axes[axis] for axis in axes if axis not in sweep and axis not in template.case}
    for values in product(*free.values()):
        chosen = {**case, **template.case, **dict(zip(free, values, strict=True))}
        name = f"{paper}/{figure}/{template.row.format(**chosen)}"
        yield Row(name, figure, template, chosen, sweep)

"""Loads the papers' settings and printed numbers from the YAML files beside this module.

`load("laps_sd")` validates a whole file: every name that it refers to exists, every policy accepts
its options, every block cites its section or has `not specified`. `rows` writes out its templates.
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError
from pydantic import model_validator as checked

from lab.papers.blocks import Arm, Block, Dataset, Machine, Metric, Model, Workload
from lab.papers.row import Row, RowTemplate, Scalar, Source, written_out

PAPERS = ("spin", "specserve", "adaserve", "laps_sd", "self_scheduling")


class BadSettings(Exception):
    """A file is invalid; the message has the place."""


class Figure(Block):
    title: str
    source: Source
    seeds: int = Field(1, ge=1)
    """Number of paired runs whose mean is taken."""
    run: Literal["simulator", "native", "zoo"]
    """`native`: on the real engine (native.py); `zoo`: needs the zoo's target itself to answer."""
    case: Mapping[str, Scalar] = {}
    over: Mapping[str, tuple[Scalar, ...]] = {}
    """Axes. `machine`, `dataset` and `workload` must each be in `case` or here."""
    arms: tuple[str, ...]
    rows: tuple[RowTemplate, ...]

    def values(self, name: str) -> tuple[Scalar, ...]:
        """The values of an axis, or the one value in `case`."""
        return (self.case[name],) if name in self.case else self.over.get(name, ())

    @checked(mode="after")
    def _complete_case(self) -> Self:
        for name in ("machine", "dataset", "workload"):
            if (name in self.case) == (name in self.over):
                raise ValueError(f"case or over must name the {name}, and one of them only")
        return self

    @checked(mode="after")
    def _known_in_rows(self) -> Self:
        for row in self.rows:
            for arm in (row.of, *row.against):
                if arm not in self.arms:
                    raise ValueError(f"{row.row}: {arm!r} is not among the figure's arms")
            for axis in (*row.across, *row.only, *row.case, *row.against_case):
                if axis not in self.over:
                    raise ValueError(f"{row.row}: {axis!r} is no axis of the figure")
            for axis, value in row.points():
                if value not in self.over[axis]:
                    raise ValueError(f"{row.row}: {axis} has no value {value!r}")
        return self


class Paper(Block):
    title: str
    models: Mapping[str, Model]
    machines: Mapping[str, Machine]
    datasets: Mapping[str, Dataset]
    workloads: Mapping[str, Workload]
    metrics: Mapping[str, Metric]
    arms: Mapping[str, Arm]
    figures: Mapping[str, Figure]
    contradictions: tuple[str, ...] = ()
    """Where the paper contradicts itself."""

    @checked(mode="before")
    @classmethod
    def _complete_arms(cls, given: dict[str, object]) -> dict[str, object]:
        """Adds `fixed`, the entries that all arms share, to each arm."""
        rest = {name: value for name, value in given.items() if name != "fixed"}
        fixed, arms = given.get("fixed", {}), given.get("arms")
        if not isinstance(fixed, dict) or not isinstance(arms, dict):
            raise ValueError("fixed and arms are mappings")
        return {**rest, "arms": {name: {**fixed, **arm} for name, arm in arms.items()}}

    @checked(mode="after")
    def _known_names(self) -> Self:
        for used, known, where in self._references():
            if used not in known:
                raise ValueError(f"{where}: there is no {used!r}; there are {', '.join(known)}")
        return self

    def _references(self) -> Iterator[tuple[str, Mapping[str, object], str]]:
        """Every name in use, the mapping that must define it, and the place of use."""
        for name, machine in self.machines.items():
            for model in (machine.target, *(drafter.model for drafter in machine.drafters)):
                yield model, self.models, f"machines.{name}"
        for name, dataset in self.datasets.items():
            for model in dataset.acceptance:
                yield model, self.models, f"datasets.{name}.acceptance"
            for part in dataset.mix_of:
                yield part, self.datasets, f"datasets.{name}.mix_of"
        for name, workload in self.workloads.items():
            for dataset_name in (*workload.slo, *workload.peaks):
                yield dataset_name, self.datasets, f"workloads.{name}"
        for name, figure in self.figures.items():
            for arm_name in figure.arms:
                yield arm_name, self.arms, f"figures.{name}.arms"
            for row in figure.rows:
                yield row.metric, self.metrics, f"figures.{name}.rows.{row.row}"
            for axis, defined in self._axes().items():
                for value in figure.values(axis):
                    yield str(value), defined, f"figures.{name}.{axis}"

    def _axes(self) -> dict[str, Mapping[str, object]]:
        """The axes whose values are names."""
        return {"machine": self.machines, "dataset": self.datasets, "workload": self.workloads}

    @checked(mode="after")
    def _complete_workloads(self) -> Self:
        for name, figure in self.figures.items():
            for used in figure.values("workload"):
                for need in self.workloads[str(used)].needs:
                    if not figure.values(need):
                        raise ValueError(f"figures.{name}: workload {used} needs {need!r}")
        return self

    @checked(mode="after")
    def _complete_acceptance(self) -> Self:
        for name, figure in self.figures.items():
            for machine, dataset in product(figure.values("machine"), figure.values("dataset")):
                for drafter in self.machines[str(machine)].drafters:
                    for part in self.datasets[str(dataset)].mix_of or (str(dataset),):
                        if drafter.model not in self.datasets[part].acceptance:
                            raise ValueError(
                                f"figures.{name}: {part} has no acceptance of {drafter.model}"
                            )
        return self


def load(paper: str, folder: Path = Path(__file__).parent) -> Paper:
    """Raises BadSettings."""
    file = folder / f"{paper}.yaml"
    try:
        given = yaml.load(file.read_text(), _UniqueKeyLoader)
        settings = Paper.model_validate(given)
        rows(paper, settings)
    except (ValidationError, ValueError, KeyError, yaml.YAMLError) as error:
        raise BadSettings(f"{file.name}: {error}") from error
    return settings


def rows(paper: str, settings: Paper) -> list[Row]:
    """Every row of every figure, in the file's order."""
    written = [
        row
        for name, figure in settings.figures.items()
        for template in figure.rows
        for row in written_out(paper, name, template, figure.case, figure.over)
    ]
    names = [row.name for row in written]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"rows of one name: {', '.join(duplicates)}")
    return written


class _UniqueKeyLoader(yaml.CSafeLoader):
    """Refuses duplicate keys, of which PyYAML silently keeps the last."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        duplicates = {key for key in keys if keys.count(key) > 1}
        if duplicates:
            raise yaml.YAMLError(f"given twice: {duplicates} {node.start_mark}")
        return super().construct_mapping(node, deep)

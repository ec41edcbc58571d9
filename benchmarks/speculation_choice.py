"""Speculation policies on benchmarks' command lines: `planner`, `fixed:length=4`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from policies.catalogue import SPECULATIONS, Speculations, make_speculation


@dataclass(frozen=True, slots=True)
class SpeculationChoice:
    text: str
    """As written on the command line; names the policy in records."""
    name: str
    options: Mapping[str, object]

    @classmethod
    def parse(cls, text: str, entries: Speculations = SPECULATIONS) -> Self:
        """`NAME` or `NAME:OPTION=VALUE,OPTION=VALUE`, by the names of `entries`; raises the error
        that argparse prints."""
        name, _, listed = text.partition(":")
        options = dict(map(_option, listed.split(","))) if listed else {}
        try:
            make_speculation(name, options, entries=entries)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return cls(text, name, options)


def add_choices(
    arguments: argparse.ArgumentParser,
    flag: str,
    default: Sequence[str],
    entries: Speculations = SPECULATIONS,
) -> None:
    """Adds an option that takes several policies."""
    parse = partial(SpeculationChoice.parse, entries=entries)
    arguments.add_argument(
        flag,
        type=parse,
        nargs="+",
        default=[*map(parse, default)],
        metavar="NAME[:OPTION=VALUE,...]",
    )


def _option(assignment: str) -> tuple[str, object]:
    option, equals, value = assignment.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{assignment!r} is not OPTION=VALUE")
    try:
        return option, json.loads(value)
    except json.JSONDecodeError:
        return option, value  # a word

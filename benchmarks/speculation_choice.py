"""Speculation policies on benchmarks' command lines: `planner`, `fixed:length=4`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from policies.catalogue import make_speculation


@dataclass(frozen=True, slots=True)
class SpeculationChoice:
    text: str
    """As written on the command line; names the policy in records."""
    name: str
    options: Mapping[str, object]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME` or `NAME:OPTION=VALUE,OPTION=VALUE`, by the names of policies/catalogue.py; raises
        the error that argparse prints."""
        name, _, listed = text.partition(":")
        options = dict(map(_option, listed.split(","))) if listed else {}
        try:
            make_speculation(name, options)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return cls(text, name, options)


def add_choices(arguments: argparse.ArgumentParser, flag: str, default: Sequence[str]) -> None:
    """Adds an option that takes several policies."""
    arguments.add_argument(
        flag,
        type=SpeculationChoice.parse,
        nargs="+",
        default=[SpeculationChoice.parse(policy) for policy in default],
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

"""Prometheus's own programs, and what boards and alerts ask it for."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.boards.grafana import board

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "dashboards" / "alerts.yaml"
_NAME = re.compile(r"\bray_spindle_\w+")
_SELECTOR = re.compile(r"(\bray_spindle_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def program(name: str) -> str:
    """Its path; the test is skipped on a machine that lacks it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: it is in Debian's package prometheus")
    return found


def selected(expression: str) -> dict[str, set[str]]:
    """The labels that an expression selects by, for each of our series in it."""
    series: dict[str, set[str]] = {name: set() for name in _NAME.findall(expression)}
    for name, inside in _SELECTOR.findall(expression):
        series[name] |= set(_LABEL.findall(re.sub(r'"[^"]*"', '""', inside)))
    return series


def queries(name: str) -> Iterator[str]:
    """Of a board."""
    for panel in board(name)["panels"]:
        for target in panel["targets"]:
            yield target["expr"]

"""Prometheus's own programs, and what boards and alerts ask it for."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.metrics import OF_INGRESS, OF_REPLICA, PARTS_OF_A_HISTOGRAM

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "dashboards"
ALERTS = FOLDER / "alerts.yaml"
BOARDS: dict[str, Any] = {
    file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))
}
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
    """The queries of a board."""
    for panel in BOARDS[name]["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def exported(prefix: str = "ray_spindle_") -> dict[str, set[str]]:
    """The label names of each series that Prometheus stores, by its name."""
    series: dict[str, set[str]] = {}
    for declared, own in ((OF_REPLICA, {"replica"}), (OF_INGRESS, set[str]())):
        for kind, metric in ((kind, one) for kind, metrics in declared for one in metrics):
            labels = own | set(metric.labels)
            if kind == "histogram":
                for part in PARTS_OF_A_HISTOGRAM:
                    more = {"le"} if part == "bucket" else set[str]()
                    series[f"{prefix}{metric.name}_{part}"] = labels | more
            else:
                suffix = "_total" if kind == "counter" else ""
                series[f"{prefix}{metric.name}{suffix}"] = labels
    return series

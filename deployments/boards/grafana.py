"""Grafana's JSON of the boards."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployments.boards.queries import Panel
from deployments.boards.service import RELIABILITY, SLO
from deployments.boards.shared import (
    ACCEPTANCE,
    ATTAINMENT,
    DOWN,
    GOODPUT,
    LOAD,
    SPEED_UP,
    STATUSES,
    TPOT,
    TTFT,
)
from deployments.boards.speculation import DRAFTERS, PIPELINE

FOLDER = Path(__file__).parents[2] / "dashboards"
OVERVIEW = [GOODPUT, SPEED_UP, LOAD, ATTAINMENT, TTFT, TPOT, ACCEPTANCE, STATUSES, DOWN]
BOARDS: dict[str, tuple[str, Sequence[Panel]]] = {
    "overview": ("Spindle", OVERVIEW),
    "drafters": ("Spindle: drafters and selection", DRAFTERS),
    "pipeline": ("Spindle: pipeline", PIPELINE),
    "slo": ("Spindle: SLO and schedule", SLO),
    "reliability": ("Spindle: reliability", RELIABILITY),
}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 12, 8
_LETTERS = "ABCDEFGHIJ"


def board(name: str) -> dict[str, Any]:
    title, panels = BOARDS[name]
    return {
        "title": title,
        "uid": "spindle" if name == "overview" else f"spindle-{name}",
        "tags": ["spindle", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {
                "title": "Spindle",
                "type": "dashboards",
                "tags": ["spindle"],
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": [_DATASOURCE, _REPLICA]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


_DATASOURCE = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}
_REPLICA = {
    "name": "replica",
    "label": "Replica",
    "type": "query",
    "datasource": _SOURCE,
    "query": "label_values(ray_spindle_forwards_total, replica)",
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 24 // _WIDTH)
    custom = {"fillOpacity": 10, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    bars = panel.kind == "bargauge"
    by_name = panel.coloured_by_name
    color = {"mode": "palette-classic-by-name" if by_name else "palette-classic"}
    drawn = {} if bars else {"color": color, "custom": custom}
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, **drawn},
            "overrides": [],
        },
        "targets": [
            {
                "refId": letter,
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                **({"instant": True} if bars else {}),
            }
            for letter, query in zip(_LETTERS, panel.queries, strict=False)
        ],
    }


def written(name: str) -> str:
    return json.dumps(board(name), indent=1) + "\n"

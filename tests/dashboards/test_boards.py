"""Grafana's boards ask for what is declared, in PromQL, and show all of it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.dashboards.promtool import BOARDS, exported, program, queries, selected

_GROUPED = re.compile(r"\bby \(([^)]*)\)")


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_asks_only_for_declared_series_and_labels(name: str) -> None:
    declared = exported()
    for query in queries(name):
        series = selected(query)
        assert series
        for asked, labels in series.items():
            assert asked in declared, query
            assert labels <= declared[asked], query
        shared = set.intersection(*(declared[asked] for asked in series))
        for group in _GROUPED.findall(query):
            assert set(group.split(", ")) <= shared, query


def test_the_boards_show_every_metric() -> None:
    # A histogram is shown by its buckets, or by their sum and count.
    part = re.compile("_(bucket|count|sum)$")
    shown = {asked for name in BOARDS for query in queries(name) for asked in selected(query)}
    assert {part.sub("", name) for name in exported()} == {part.sub("", name) for name in shown}


def test_boards_and_panels_can_be_told_apart() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    """As recording rules, which promtool parses."""
    rules = [
        {
            "record": "any",
            "expr": query.replace("$replica", ".*").replace("$__rate_interval", "1m"),
            "labels": {"number": str(number)},
        }
        for number, query in enumerate(query for name in BOARDS for query in queries(name))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [program("promtool"), "check", "rules", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

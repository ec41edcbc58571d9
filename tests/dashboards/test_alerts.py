"""Each alert fires when it should and only then, in Prometheus's own tests of rules."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.dashboards.promtool import ALERTS, BOARDS, ROOT, exported, program, selected

PAGE = ROOT / "docs" / "operating.md"
Series = Mapping[str, str]
"""Values in promtool's notation (`0+5x60`: from 0, 60 times 5 more), a minute apart."""

FOR_EVER = 420
"""Minutes: longer than every window."""


class Case(NamedTuple):
    fires: Series
    quiet: Series
    labels: Mapping[str, str] = {}
    """Those of the alert that fires, without its severity."""
    at: str = "60m"


def promises(kept: int, missed: int) -> Series:
    """So many each minute."""
    name = 'promises_total{{replica="r", slo_class="chat", kept="{}"}}'
    return {name.format("yes"): f"0+{kept}x{FOR_EVER}", name.format("no"): f"0+{missed}x{FOR_EVER}"}


def responses(status: str, share: int) -> Series:
    """So many of a hundred each minute."""
    return {
        f'responses_total{{status="{status}"}}': f"0+{share}x60",
        'responses_total{status="200"}': f"0+{100 - share}x60",
    }


def tokens(accepted: str, verified: str = f"0+200x{FOR_EVER}", expected: str = "") -> Series:
    of = '{replica="r", drafter="tiny", position="1"}'
    series = {f"verified_tokens_total{of}": verified, f"accepted_tokens_total{of}": accepted}
    return {**series, f"expected_tokens_total{of}": expected} if expected else series


def speed(plain: int, slots: int, clock: int = 10) -> Series:
    """`clock`: how long probes take where the cost model expects 10."""
    return {
        'probe_seconds_total{by="clock"}': f"0+{clock}x60",
        'probe_seconds_total{by="model"}': "0+10x60",
        'plain_seconds_total{drafter="tiny"}': f"0+{plain}x60",
        'slot_seconds_total{drafter="tiny", part="verify"}': f"0+{slots}x60",
        'slot_seconds_total{drafter="tiny", part="prompts"}': "0+100x60",
        'verified_tokens_total{drafter="tiny", position="1"}': "0+200x60",
    }


def load(waiting: str) -> Series:
    """Forwards of 8 requests."""
    return {
        'waiting{replica="r"}': waiting,
        'running{replica="r"}': "16x60",
        'forwards_total{replica="r"}': "0+10x60",
        'rounds_total{replica="r", drafter="tiny", accepted="1"}': "0+80x60",
    }


TINY = {"replica": "r", "host": "tiny"}


def of_tiny(name: str, fires: str, quiet: str) -> Case:
    series = name + '{replica="r", host="tiny"}'
    return Case({series: fires}, {series: quiet}, TINY)


CASES = {
    # A burst of five minutes is over before it has used up the budget of an hour.
    "SpindleSloBurnsFast": Case(
        promises(kept=1, missed=4),
        {
            'promises_total{slo_class="chat", kept="yes"}': "0+5x55 275+1x5",
            'promises_total{slo_class="chat", kept="no"}': "0+0x55 0+4x5",
        },
        {"slo_class": "chat"},
    ),
    "SpindleSloBurns": Case(
        promises(kept=6, missed=4), promises(kept=8, missed=2), {"slo_class": "chat"}, at="400m"
    ),
    "SpindleErrorsBurn": Case(responses("500", 2), responses("500", 1)),
    "SpindleRefusesRequests": Case(responses("429", 10), responses("429", 4)),
    "SpindleQueueGrows": Case(load(waiting="0+1x60"), load(waiting="70-1x60")),
    "SpindleVerifierDown": Case(
        {'down{replica="r", host="verifier"}': "0x58 1x3"},
        {'down{replica="r", host="verifier"}': "0x60", 'down{replica="r", host="tiny"}': "1x60"},
        {"replica": "r", "host": "verifier"},
    ),
    "SpindleLaneDown": of_tiny("down", "0x57 1x5", "0x57 1 0x5"),
    "SpindleDrafterStalls": of_tiny("late_calls_total", "0x57 1x5", "0x40 1x30"),
    "SpindleHostLost": of_tiny("losses_total", "0x57 1x5", "0x40 1x30"),
    "SpindleHostFlaps": of_tiny("losses_total", "0x40 1x5 2x5 3x20", "0x40 1x5 2x25"),
    "SpindleReplicasFlap": Case(
        {"replicas_lost_total": "0x40 1x5 2x5 3x20"}, {"replicas_lost_total": "0x40 1x5 2x25"}
    ),
    "SpindleMetricsMissing": Case(
        {"running": "1x60"}, {'forwards_total{replica="r"}': "0+1x60"}, {}
    ),
    "SpindleAcceptanceCollapses": Case(
        tokens(accepted="0+150x370 55500+30x50"),
        tokens(accepted="0+150x370 55500+100x50"),
        {"drafter": "tiny"},
        at="400m",
    ),
    "SpindleCalibrationDrifts": Case(
        tokens(accepted="0+60x60", verified="0+200x60", expected="0+100x60"),
        tokens(accepted="0+90x60", verified="0+200x60", expected="0+100x60"),
        {"drafter": "tiny"},
    ),
    "SpindleCostModelDrifts": Case(
        {
            'prediction_error_seconds_total{replica="r", host="tiny"}': "0+6x60",
            'predicted_seconds_total{replica="r", host="tiny"}': "0+10x60",
        },
        {
            'prediction_error_seconds_total{replica="r", host="tiny"}': "0+3x60",
            'predicted_seconds_total{replica="r", host="tiny"}': "0+10x60",
        },
        TINY,
    ),
    "SpindleSpeculationSlower": Case(speed(plain=9, slots=10), speed(plain=9, slots=10, clock=15)),
}
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]


def unit_tests(name: str, case: Case, rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    def one(series: Series, alerts: list[Any]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [
                {"series": f"ray_spindle_{one}", "values": values} for one, values in series.items()
            ],
            "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": alerts}],
        }

    annotations = {
        key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
        for key, text in rule["annotations"].items()
    }
    fired = {"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}
    return [one(case.fires, [fired]), one(case.quiet, [])]


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    promtool = program("promtool")
    assert {rule["alert"] for rule in RULES} == CASES.keys()
    tests = [
        test for rule in RULES for test in unit_tests(rule["alert"], CASES[rule["alert"]], rule)
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    for command in (["check", "rules", str(ALERTS)], ["test", "rules", str(file)]):
        ended = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_reads_declared_series_and_has_its_chapter(rule: Mapping[str, Any]) -> None:
    declared = exported()
    for name, labels in selected(rule["expr"]).items():
        assert labels <= declared.get(name, set()), name
        assert name in declared
    assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"
    severity, board, panels = chapter(rule["alert"])
    assert severity == rule["labels"]["severity"]
    assert set(panels) <= panels_of(board), "the board that shows it"


def chapter(alert: str) -> tuple[str, str, list[str]]:
    """Severity, board and panels that the first line of the alert's chapter names."""
    _, _, after = PAGE.read_text().partition(f"\n### {alert}\n\n")
    found = re.match(r"`(\w+)` · board \*([^*]+)\*: (.+)\n\n", after)
    assert found is not None
    return found[1], found[2], re.findall(r"\*([^*]+)\*", found[3])


def panels_of(board: str) -> set[str]:
    [found] = [one for one in BOARDS.values() if one["title"].endswith(board)]
    return {panel["title"] for panel in found["panels"]}


def test_the_page_names_only_boards_and_panels_that_there_are() -> None:
    titles = {board["title"].removeprefix("Spindle: ") for board in BOARDS.values()}
    panels = {panel["title"] for board in BOARDS.values() for panel in board["panels"]}
    text = re.sub(r"`[^`]*`|^    .*$", "", PAGE.read_text(), flags=re.MULTILINE)
    named = {" ".join(one.split()) for one in re.findall(r"\*([^*]+)\*", text)}
    assert named <= titles | panels

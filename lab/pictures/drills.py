"""What metrics and alerts show when a drafter dies, when one stalls, and under overload.

`python -m lab.pictures.drills [--json FILE] [--images FOLDER]` runs cluster/test.yaml with a
Prometheus beside it, whose rules are the project's with all times divided by ten, as is the time
after which Ray publishes its series: a kill -9 and a SIGSTOP of a drafter under 4 clients, and 200
clients. It exits with status 1 where an alert that docs/operating.md promises does not fire, or a
request fails with a 5xx or without an answer.
"""

import argparse
import json
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.processes import end_after_ray, environment
from benchmarks.serving.app import App, running, small_args
from lab.pictures.board_picture import Span, draw_board
from lab.pictures.load import Load
from lab.pictures.prometheus import ALERTS, Prometheus, prometheus

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FASTER = 10
"""By how much all times are shorter, so that a drill takes a minute."""
_RAY_PUBLISHES_MS = 10_000
_PORT = 8149
_BEFORE_S, _QUIET_S, _PERIOD_S = 12.0, 60.0, 2.0
_TIMES = re.compile(r"(\[|for: |offset )(\d+)([smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}
_SLO = {"ttft_ms": 1000.0, "tpot_ms": 100.0}


@dataclass(frozen=True)
class Drill:
    name: str
    what: str
    clients: int
    seconds: float
    """How long it is watched."""
    board: str
    panels: Sequence[str]
    series: Mapping[str, str]
    """Expressions whose largest value is recorded, by what they are."""
    expected: Collection[str]
    """Alerts that must fire."""
    strike: Callable[[App], None] | None = None
    """None: the clients themselves are what strikes."""


@dataclass
class Finding:
    drill: str
    what: str
    alerts: dict[str, float] = field(default_factory=dict)
    """Seconds until each fired."""
    series: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def _signal(drafter: str, number: signal.Signals) -> Callable[[App], None]:
    def strike(app: App) -> None:
        (pid,) = [actor.pid for actor in app.actors() if f":{drafter}:" in actor.name]
        os.kill(pid, number)

    return strike


def _of(host: str) -> Mapping[str, str]:
    where = f'{{host="{host}"}}'
    return {
        "losses": f"ray_spindle_losses_total{where}",
        "late calls": f"ray_spindle_late_calls_total{where}",
        "down": f"ray_spindle_down{where}",
        "restarts": f"ray_spindle_restarts_total{where}",
    }


_HOST_PANELS = ("Drafters and verifiers that are down", "Lost and restarted", "Late draft calls")
DRILLS = (
    Drill(
        "kill",
        "kill -9 of the drafter tiny",
        4,
        30,
        "reliability",
        _HOST_PANELS,
        _of("tiny"),
        ("SpindleHostLost", "SpindleLaneDown"),
        _signal("tiny", signal.SIGKILL),
    ),
    Drill(
        "stop",
        "SIGSTOP of the drafter tasks",
        4,
        30,
        "reliability",
        _HOST_PANELS,
        _of("tasks"),
        ("SpindleHostLost",),
        _signal("tasks", signal.SIGSTOP),
    ),
    Drill(
        "overload",
        "200 clients",
        200,
        60,
        "overview",
        ("Goodput", "Running and waiting requests", "SLO attainment by class",
         "Time to first token", "Time per output token", "Responses by status"),
        {
            "running": "sum(ray_spindle_running)",
            "waiting": "sum(ray_spindle_waiting)",
            "429 per second": 'sum(rate(ray_spindle_responses_total{status="429"}[10s]))',
            "5xx": 'sum(ray_spindle_responses_total{status=~"5.."})',
            "SLOs missed per second": 'sum(rate(ray_spindle_promises_total{kept="no"}[10s]))',
            "TTFT p95, s": "histogram_quantile(0.95, sum by (le) "
            "(rate(ray_spindle_ttft_seconds_bucket[10s])))",
        },
        ("SpindleRefusesRequests",),
    ),
)  # fmt: skip


def faster(rules: str) -> str:
    """The rules with all their times divided by FASTER."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * _UNITS[found[3]] / FASTER
        return f"{found[1]}{round(1000 * seconds)}ms"

    return _TIMES.sub(shorter, rules)


def run(app: App, server: Prometheus, drill: Drill, images: Path) -> Finding:
    _await_quiet(server)
    if drill.strike is None:
        time.sleep(_BEFORE_S)
    with Load(app.url, drill.clients, _SLO, seed=drill.clients + len(drill.name)) as load:
        if drill.strike is not None:
            time.sleep(_BEFORE_S)
        struck = time.time()
        if drill.strike is not None:
            drill.strike(app)
        time.sleep(drill.seconds)
        ended = time.time()
        statuses = dict(load.statuses)
    span = (struck - _BEFORE_S, ended)
    finding = Finding(drill.name, drill.what)
    finding.statuses = {str(status or "no answer"): count for status, count in statuses.items()}
    fired: dict[str, list[Span]] = {}
    for one in server.firing(span):
        name = one.labels["alertname"]
        fired.setdefault(name, []).append((one.times_s[0], one.times_s[-1]))
    finding.alerts = {
        name: round(max(0.0, min(begin for begin, _ in spans) - struck), 1)
        for name, spans in sorted(fired.items())
    }
    for name, expression in drill.series.items():
        values = [value for one in server.over(expression, span, 1.0) for value in one.values]
        finding.series[name] = round(max((v for v in values if v == v), default=0.0), 2)
    finding.missing = [name for name in drill.expected if name not in fired]
    draw_board(
        server,
        drill.board,
        span,
        images / f"drill-{drill.name}.png",
        drill.panels,
        {name.removeprefix("Spindle"): spans for name, spans in sorted(fired.items())},
        struck,
        f"{drill.what}, at the dashed line; bars: alerts that fire",
    )
    return finding


def _await_quiet(server: Prometheus) -> None:
    """Until no alert fires any more, or for a minute: some hold on for longer."""
    end = time.monotonic() + _QUIET_S
    while server.now('ALERTS{alertstate="firing"}') and time.monotonic() < end:
        time.sleep(_PERIOD_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.images.mkdir(parents=True, exist_ok=True)
    # As if the clients came from many addresses.
    args = {**small_args(), "metrics_without_key": True, "limits": {"client_share": 1.0}}
    findings = []
    every_ms = str(_RAY_PUBLISHES_MS // FASTER)
    with (
        environment({"RAY_metrics_report_interval_ms": every_ms}),
        running(args, _PORT) as app,
        # Not /metrics: overload delays its answers beyond a scrape's limit.
        prometheus(None, faster(ALERTS.read_text())) as server,
    ):
        for drill in DRILLS:
            finding = run(app, server, drill, options.images)
            print(json.dumps(asdict(finding)), flush=True)
            findings.append(finding)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in findings], indent=1) + "\n")
    failed = [one for one in findings if one.missing or any(s[0] in "5n" for s in one.statuses)]
    end_after_ray(bool(failed))


if __name__ == "__main__":
    main()

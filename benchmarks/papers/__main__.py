"""The papers' tables: `python -m benchmarks.papers [PAPER ...] [--smoke] [--json FILE]`.

A PAPER may also be the beginning of row names, as `spin/fig13`. Every row is printed with our
value, the paper's number (reference), their ratio, and whether it is reproduced (README.md). All
of them take an estimated 3,800 seconds of CPU (docs/papers.md), `--smoke` some 50.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path

from benchmarks.papers.bounds import bounds
from benchmarks.papers.cells import settings
from benchmarks.papers.judging import Verdict, cells_of, judge
from benchmarks.papers.row import Row
from benchmarks.papers.running import measure_all, processes
from benchmarks.papers.settings import PAPERS, rows
from benchmarks.report import parser

SMOKE = (
    "laps_sd/fig2/",
    "laps_sd/fig7/mbpp/",
    "self_scheduling/table2/",
    "spin/fig10/alpaca/7b/",
    "specserve/fig9/7b_l40/trace_3/",
    "adaserve/fig16/llama/",
)
"""Chosen before any result, then cut to what a minute holds."""
_ELSEWHERE = {
    "native": "needs the real engine",
    "zoo": "needs a model that answers",
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("papers", nargs="*", default=PAPERS, metavar="PAPER")
    arguments.add_argument("--smoke", action="store_true", help="a few rows of each paper")
    arguments.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="where replayed traces are"
    )
    arguments.add_argument("--processes", type=int, default=2)
    given = arguments.parse_args()

    wanted = {
        paper: [row for row in _rows(paper) if _wanted(row.name, given.papers, given.smoke)]
        for paper in PAPERS
    }
    if not any(wanted.values()):
        arguments.error(f"no row's name begins with {' or '.join(given.papers)}")
    verdicts: list[Verdict] = []
    with processes(given.processes) as pool:
        for paper, chosen in wanted.items():
            verdicts += _run(paper, chosen, given.data, pool)
    counts = Counter(verdict.status.partition(":")[0] for verdict in verdicts)
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    if given.json is not None:
        given.json.write_text(json.dumps([_flat(one) for one in verdicts], indent=1) + "\n")


def _rows(paper: str) -> list[Row]:
    return [*rows(paper, settings(paper)), *bounds(paper)]


def _wanted(row: str, beginnings: Sequence[str], smoke: bool) -> bool:
    return row.startswith(tuple(beginnings)) and (not smoke or row.startswith(SMOKE))


def _run(paper: str, chosen: Sequence[Row], traces: Path, pool: Executor) -> list[Verdict]:
    obstacles = {row.name: _obstacle(paper, row, traces) for row in chosen}
    here = [row for row in chosen if obstacles[row.name] is None]
    needed = {cell: None for row in here for cell in sorted(cells_of(paper, row), key=str)}
    measured = measure_all(list(needed), traces, pool)
    verdicts = []
    width = max((len(row.name) for row in chosen), default=0)
    for row in chosen:
        obstacle = obstacles[row.name]
        if obstacle is not None:
            print(f"{row.name:{width}}  not run here: {obstacle}")
            continue
        verdict = judge(paper, row, measured)
        verdicts.append(verdict)
        print(f"{row.name:{width}}  {_shown(verdict)}", flush=True)
    return verdicts


def _obstacle(paper: str, row: Row, traces: Path) -> str | None:
    """Why the row cannot be run here."""
    run = settings(paper).figures[row.figure].run
    if run != "simulator":
        return _ELSEWHERE[run]
    for cell in cells_of(paper, row):
        trace = settings(paper).workloads[str(cell.at["workload"])].trace
        if trace is not None and not (traces / trace).exists():
            return f"no {trace} in {traces} (--data)"
    return None


def _shown(verdict: Verdict) -> str:
    record = verdict.record
    line = f"{record.value:10.4g} {record.unit}"
    if record.reference is not None:
        line += f" (reference {record.reference:.4g}"
        line += ")" if record.ratio is None else f", ratio {record.ratio:.3f})"
    return f"{line}  {verdict.status}"


def _flat(verdict: Verdict) -> dict[str, object]:
    """JSON knows no infinity: what has no ratio to 0 has no value there."""
    fields = {**asdict(verdict.record), "status": verdict.status}
    return {name: None if at in (math.inf, -math.inf) else at for name, at in fields.items()}


if __name__ == "__main__":
    main()

"""Measures the rows of the papers' figures and tables in the simulator, over the printed numbers.

`python -m lab.papers [PAPER ...] [--smoke] [--json FILE]`, or `--count FILE`.

A PAPER may also be a prefix of row names, as `spin/fig13`. Every row is printed with its value, the
paper's number (reference), their ratio, and whether it is reproduced (README.md). `--json` keeps
what the file has of other rows, for the whole takes long; `--count` counts the claims by the
statuses in such a file, and runs nothing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import parser
from lab.papers.bounds import bounds
from lab.papers.cells import Cell, settings
from lab.papers.counting import STATUSES, count_claims
from lab.papers.measuring import measure_all, processes
from lab.papers.native import measure_native
from lab.papers.row import Row
from lab.papers.settings import PAPERS, rows
from lab.papers.verdicts import Verdict, cells_of, evaluate

SMOKE = (
    "laps_sd/fig2/",
    "laps_sd/fig7/mbpp/",
    "self_scheduling/table2/",
    "spin/fig10/alpaca/7b/",
    "specserve/fig9/7b_l40/trace_3/",
    "adaserve/fig16/llama/",
)
"""Prefixes of the rows of `--smoke`, chosen before any result and then cut to a minute."""
_NEEDS_A_MODEL = "needs a model that answers"
_OTHER_MACHINE = "the time of the paper's own machine"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("papers", nargs="*", default=PAPERS, metavar="PAPER")
    arguments.add_argument("--smoke", action="store_true", help="a few rows of each paper")
    arguments.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="where replayed traces are"
    )
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--count", type=Path, metavar="FILE", help="claims by status in FILE")
    arguments.add_argument(
        "--first-seed", type=int, default=0, help="others than the reported ones"
    )
    options = arguments.parse_args()

    if options.count:
        print("\n".join(count_lines(options.count)))
        return
    selected = {
        paper: [row for row in _rows(paper) if _wanted(row.name, options.papers, options.smoke)]
        for paper in PAPERS
    }
    if not any(selected.values()):
        arguments.error(f"no row's name starts with {' or '.join(options.papers)}")
    verdicts: list[Verdict] = []
    with processes(options.processes) as pool:
        for paper, chosen in selected.items():
            of_paper = _run(paper, chosen, options.data, pool, options.first_seed)
            verdicts += of_paper
            statuses = {verdict.row.name: verdict.status for verdict in of_paper}
            claims = count_claims(chosen, _impossible(paper, chosen), statuses)
            if claims:
                counts = ", ".join(f"{count} {status}" for status, count in claims.most_common())
                print(f"{paper}, claims: {counts}")
    if options.json is not None:
        _write(options.json, verdicts)


def count_lines(file: Path) -> list[str]:
    """A row of a table for each paper, with its claims by status."""
    recorded = {record["name"]: record["status"] for record in json.loads(file.read_text())}
    lines = [f"| paper | {' | '.join(STATUSES)} |"]
    for paper in PAPERS:
        of_paper = _rows(paper)
        counts = count_claims(of_paper, _impossible(paper, of_paper), recorded)
        numbers = " | ".join(str(counts[status]) for status in STATUSES)
        lines.append(f"| {settings(paper).title} | {numbers} |")
    return lines


def _write(file: Path, verdicts: Sequence[Verdict]) -> None:
    """In the place of what the file has of the same rows."""
    earlier = json.loads(file.read_text()) if file.exists() else []
    records = {record["name"]: record for record in earlier}
    records |= {verdict.row.name: _flat(verdict) for verdict in verdicts}
    file.write_text(json.dumps(list(records.values()), indent=1) + "\n")


def _rows(paper: str) -> list[Row]:
    return [*rows(paper, settings(paper)), *bounds(paper)]


def _wanted(row: str, prefixes: Sequence[str], smoke: bool) -> bool:
    return row.startswith(tuple(prefixes)) and (not smoke or row.startswith(SMOKE))


def _run(
    paper: str, chosen: Sequence[Row], traces: Path, pool: Executor, first_seed: int
) -> list[Verdict]:
    obstacles = {row.name: _obstacle(paper, row, traces) for row in chosen}
    runnable = [row for row in chosen if obstacles[row.name] is None]
    measured: dict[Cell, Mapping[str, float]] = {}
    for native in (False, True):
        of_kind = [row for row in runnable if _is_native(paper, row) == native]
        cells = {cell for row in of_kind for cell in cells_of(paper, row, first_seed)}
        # What is timed runs alone, after the others.
        needed = sorted(cells, key=str)
        measured |= measure_native(needed) if native else measure_all(needed, traces, pool)
    verdicts = []
    width = max((len(row.name) for row in chosen), default=0)
    for row in chosen:
        obstacle = obstacles[row.name]
        if obstacle is not None:
            print(f"{row.name:{width}}  not run here: {obstacle}")
            continue
        verdict = evaluate(paper, row, measured, first_seed)
        verdicts.append(verdict)
        print(f"{row.name:{width}}  {_formatted(verdict)}", flush=True)
    return verdicts


def _is_native(paper: str, row: Row) -> bool:
    return settings(paper).figures[row.figure].run == "native"


def _not_runnable(paper: str, row: Row) -> str | None:
    """Why no simulator here can measure the row, if so."""
    run = settings(paper).figures[row.figure].run
    if run == "zoo":
        return _NEEDS_A_MODEL
    return _OTHER_MACHINE if run == "native" and row.template.value == "plain" else None


def _impossible(paper: str, of_paper: Sequence[Row]) -> list[str]:
    return [row.name for row in of_paper if _not_runnable(paper, row)]


def _obstacle(paper: str, row: Row, traces: Path) -> str | None:
    """Why the row cannot be measured, if so."""
    why = _not_runnable(paper, row)
    if why is not None or _is_native(paper, row):
        return why
    for cell in cells_of(paper, row):
        trace = settings(paper).workloads[str(cell.at["workload"])].trace
        if trace is not None and not (traces / trace).exists():
            return f"no {trace} in {traces} (--data)"
    return None


def _formatted(verdict: Verdict) -> str:
    record = verdict.record
    line = f"{record.value:10.4g} {record.unit}"
    if record.reference is not None:
        line += f" (reference {record.reference:.4g}"
        line += ")" if record.ratio is None else f", ratio {record.ratio:.3f})"
    return f"{line}  {verdict.status}"


def _flat(verdict: Verdict) -> dict[str, object]:
    """The record and its status; infinite values, which JSON has not, as None."""
    fields = {**asdict(verdict.record), "status": verdict.status}
    return {name: None if v in (math.inf, -math.inf) else v for name, v in fields.items()}


if __name__ == "__main__":
    main()

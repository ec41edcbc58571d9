"""Draws the measured tables of lab/docs/ as SVG into lab/docs/images/: `make plots`.

Each chart reads the table that stands beside it, so it shows what the page says and nothing else.
Run it again when a table has changed.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lab.pictures.charts import COLOURS, INK, figure, legend, save

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
Table = Mapping[str, Sequence[str]]
"""The cells behind the first one of each row, by the first."""


def table(page: str, header: str) -> Table:
    """The table of the page whose header begins so; raises ValueError where there is none."""
    lines = iter((DOCS / page).read_text().splitlines())
    if not any(line.startswith(header) for line in lines):
        raise ValueError(f"lab/docs/{page} has no table whose header begins {header!r}")
    next(lines)  # | --- |
    rows: dict[str, Sequence[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[first] = cells
    return rows


def number(cell: str) -> float:
    """The first in the cell."""
    found = _NUMBER.search(cell)
    if found is None:
        raise ValueError(f"no number in {cell!r}")
    return float(found[0].replace(",", ""))


def speed() -> Figure:
    """Of all requests and of each domain, at 1, 4 and 16 clients."""
    rows = table("mixed_load.md", "| | goodput | code | prose | tasks |")
    clients = [name.removesuffix(", fair") for name in rows if name.endswith(", fair")]
    names = ("all", "code", "prose", "tasks")
    bars = {
        name: [number(rows[f"{of}, fair"][place]) for of in clients]
        for place, name in enumerate(names)
    }
    return _ratios("Output speed over plain decoding", clients, bars)


def _ratios(title: str, clients: Sequence[str], bars: Mapping[str, Sequence[float]]) -> Figure:
    """Bars by number of clients, with a line at 1."""
    made, [[axes]] = figure(6.4, 3.0)
    _grouped(axes, clients, bars)
    axes.axhline(1.0, color=INK, lw=1, ls="--")
    axes.set_title(title)
    axes.set_ylabel("×")
    legend(axes, len(bars))
    return made


def peers() -> Figure:
    """Spindle, and the best two of vLLM's own methods in the same rounds."""
    rows = table("peers.md", "| final | 1 client | 4 clients | 16 clients |")
    clients = ("1 client", "4 clients", "16 clients")

    def best(place: int) -> float:
        return max(
            number(row[place])
            for name, row in rows.items()
            if name.startswith("suffix") and row[place]
        )

    bars = {
        "vLLM's best (suffix)": [best(place) for place in range(3)],
        "Spindle on vLLM": [number(rows["Spindle"][place]) for place in range(3)],
    }
    return _ratios("Goodput over plain vLLM, both as served", clients, bars)


def pauses() -> Figure:
    """The longest pause of a stream when a part is killed."""
    rows = table("chaos.md", "| killed | streams | identical |")
    parts = list(rows)[::-1]
    mean, worst = ([number(rows[part][place]) for part in parts] for place in (2, 3))
    made, [[axes]] = figure(6.4, 2.9)
    places = range(len(parts))
    axes.barh(places, worst, color=COLOURS[0], alpha=0.35, label="worst of ten rounds")
    axes.barh(places, mean, height=0.45, color=COLOURS[0], label="mean")
    axes.set_yticks(places, parts)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds without a token, then the stream goes on, identical")
    axes.set_title("Longest pause of any stream when a part is killed")
    legend(axes)
    return made


def _grouped(axes: Any, groups: Sequence[str], bars: Mapping[str, Sequence[float]]) -> None:
    width = 0.8 / len(bars)
    for place, (name, values) in enumerate(bars.items()):
        at = [group + (place - (len(bars) - 1) / 2) * width for group in range(len(groups))]
        drawn = axes.bar(at, values, 0.92 * width, label=name, color=COLOURS[place])
        axes.bar_label(
            drawn, [f"{value:.2f}" for value in values], fontsize=8, color=INK, padding=1
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.18)


CHARTS: Mapping[str, Callable[[], Figure]] = {"speed": speed, "peers": peers, "pauses": pauses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, chart in CHARTS.items():
        save(chart(), options.folder / f"{name}.svg")


if __name__ == "__main__":
    main()

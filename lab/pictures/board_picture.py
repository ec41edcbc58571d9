"""Draws a board's panels from a Prometheus: a stand-in where there is no Grafana.

Queries, titles, units and legends are those of dashboards/*.json.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.patches import Patch

from lab.pictures.charts import COLOURS, INK, figure, legend, save
from lab.pictures.prometheus import Prometheus, Series

Panel = Mapping[str, Any]
"""As in Grafana's JSON."""
Span = tuple[float, float]
"""From when to when, in seconds of Unix time."""
_BOARDS = Path(__file__).parents[2] / "dashboards"
_RATE_INTERVAL_S = 8
_STEP_S = 1.0
_COLUMNS = 3
_MOST_SERIES = 8
_LONGEST_NAME = 12
_LABEL = re.compile(r"{{\s*(\w+)\s*}}")
_MARK = 0.07
"""Of a panel's height, for a bar that marks a time."""
_LEGEND_ROW = 0.085
"""Of a panel's height."""
_FEW = 4
"""As many curves leave room for their legend somewhere; that of more, or of areas, is above all."""
_PAPER = "#ffffff"
_UNITS = {"percentunit": "%", "reqps": "requests/s", "short": "", "none": ""}
"""How panels name Grafana's units."""


class _Line(NamedTuple):
    name: str
    times_s: Sequence[float]
    values: Sequence[float]


def board(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((_BOARDS / f"{name}.json").read_text())
    return found


def draw_board(
    server: Prometheus,
    name: str,
    span: Span,
    path: Path,
    titles: Sequence[str] = (),
    marks: Mapping[str, Sequence[Span]] | None = None,
    moment: float | None = None,
    heading: str = "",
) -> None:
    """`titles`: only these panels. `marks`: when what was the case, as bars: firing alerts.
    `moment`: a line at that time."""
    drawn = board(name)
    shown = [panel for panel in drawn["panels"] if not titles or panel["title"] in titles]
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    made, axes = figure(4.1 * columns, 2.25 * rows + 0.5, rows, columns)
    made.set_facecolor(_PAPER)
    colours = dict(zip(marks or {}, cycle(reversed(COLOURS)), strict=False))
    named = defaultdict[str, str](cycle(COLOURS).__next__)
    band = _MARK * len(marks or {})
    for one, panel in zip(axes.flat, shown, strict=False):
        _draw(server, panel, span, one, named, band)
        if moment is not None:
            one.axvline(moment - span[0], color=INK, lw=1, ls="--")
        for row, (mark, spans) in enumerate((marks or {}).items()):
            top = 1 - _MARK * row
            for begin, end in spans:
                place = {"ymin": top - 0.8 * _MARK, "ymax": top}
                one.axvspan(begin - span[0], end - span[0], color=colours[mark], lw=0, **place)
    for one in axes.flat[len(shown) :]:
        one.axis("off")
    if colours:
        patches = [Patch(color=colour, label=mark) for mark, colour in colours.items()]
        made.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8.5)
    made.suptitle(heading or f"{drawn['title']}, drawn from its queries", fontsize=11, color=INK)
    save(made, path, dpi=80)


def _draw(
    server: Prometheus, panel: Panel, span: Span, axes: Any, named: dict[str, str], band: float
) -> None:
    """`named`: the colours of curves that have the same in several panels. `band`: the share of
    the height above all curves that marks need."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = _UNITS.get(defaults["unit"], defaults["unit"].removeprefix("suffix: "))
    lines = _lines(server, panel, span)
    axes.set_title(f"{panel['title']} ({unit})" if unit else panel["title"], fontsize=9)
    axes.tick_params(labelsize=8)
    if panel["type"] == "bargauge":
        axes.bar([one.name for one in lines], [one.values[-1] for one in lines], color=COLOURS[0])
        axes.grid(axis="x", visible=False)
        return
    names = [one.name for one in lines]
    by_name = defaults["color"]["mode"] == "palette-classic-by-name"
    colours = [named[name] for name in names] if by_name else COLOURS
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    top = max((value for one in lines for value in one.values), default=0.0)
    if stacked and lines:
        times = sorted({at for one in lines for at in one.times_s})
        found = [dict(zip(one.times_s, one.values, strict=True)) for one in lines]
        stack = [[of.get(at, 0.0) for at in times] for of in found]
        top = max(map(sum, zip(*stack, strict=True)))
        axes.stackplot(times, stack, labels=names, colors=colours, alpha=0.75)
    else:
        for one, colour in zip(lines, colours, strict=False):
            axes.plot(*_with_gaps(one), label=one.name, lw=1.4, color=colour)
    columns = 2 if len(lines) > _FEW else 1
    above = stacked or columns > 1
    room = 1 - band - (_LEGEND_ROW * math.ceil(len(lines) / columns) if above else 0.0)
    axes.set_ylim(0, (1.2 * top if top > 0 else 1) / room)
    axes.set_xlim(0, span[1] - span[0])
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:.0f} s")
    if lines:
        legend(axes, columns, "upper right" if above else "best")
        axes.get_legend().set_bbox_to_anchor((0, 0, 1, 1 - band), transform=axes.transAxes)
        for text in axes.get_legend().get_texts():
            text.set_fontsize(7)


def _with_gaps(line: _Line) -> tuple[list[float], list[float]]:
    """Without a line across times that have no value."""
    times, values = [line.times_s[0]], [line.values[0]]
    for at, value in zip(line.times_s[1:], line.values[1:], strict=True):
        if at - times[-1] > 1.5 * _STEP_S:
            times.append(at - _STEP_S)
            values.append(math.nan)
        times.append(at)
        values.append(value)
    return times, values


def _lines(server: Prometheus, panel: Panel, span: Span) -> Sequence[_Line]:
    """By name. Of many, those that are always 0 are left out."""
    scale = 100.0 if panel["fieldConfig"]["defaults"]["unit"] == "percentunit" else 1.0
    found = []
    for query in panel["targets"]:
        for one in _answer(server, panel, query["expr"], span):
            pairs = [
                (at - span[0], scale * value)
                for at, value in zip(one.times_s, one.values, strict=True)
                if math.isfinite(value)
            ]
            if pairs:
                found.append(_Line(_named(query["legendFormat"], one), *zip(*pairs, strict=True)))
    if len(found) > 3 and panel["type"] != "bargauge":
        found = [one for one in found if any(one.values)] or found[:3]
    found.sort(key=lambda one: one.name)
    return found if panel["type"] == "bargauge" else found[:_MOST_SERIES]


def _answer(server: Prometheus, panel: Panel, expression: str, span: Span) -> Sequence[Series]:
    query = expression.replace("$replica", ".*")
    if panel["type"] == "bargauge":
        whole = f"{max(_RATE_INTERVAL_S, round(span[1] - span[0]))}s"
        return server.now(query.replace("$__rate_interval", whole))
    return server.over(query.replace("$__rate_interval", f"{_RATE_INTERVAL_S}s"), span, _STEP_S)


def _named(pattern: str, series: Series) -> str:
    return _LABEL.sub(lambda found: _short(series.labels.get(found[1], "")), pattern)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_NAME else value[-6:]

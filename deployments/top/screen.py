"""Draws the tables of `deployments.top` for a terminal of any width."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from deployments.top.tables import Column, Table, Value

KEYS = "s next sort column  r reverse  t table  f freeze  q quit"
QUIT = "q"
_GAP = 2


@dataclass(slots=True)
class View:
    """What the keys have chosen."""

    table: int = 0
    columns: tuple[int, int] = (1, 2)
    """By which each table is sorted."""
    ascending: bool = False
    frozen: bool = False
    quits: bool = False

    def press(self, key: str) -> None:
        """Unknown keys do nothing."""
        match key:
            case "s" | "S":
                own = list(self.columns)
                own[self.table] += 1 if key == "s" else -1
                self.columns = own[0], own[1]
            case "r":
                self.ascending = not self.ascending
            case "t" | "\t":
                self.table = 1 - self.table
            case "f" | " ":
                self.frozen = not self.frozen
            case _ if key == QUIT:
                self.quits = True


def draw(
    summary: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    view: View,
    status: str,
    width: int,
) -> RenderableType:
    """`status`: the last line, as where the numbers are from."""
    shown = [
        _table(table, view.columns[place], view.table == place, view.ascending, width)
        for place, table in enumerate(tables)
    ]
    return Group(*_summary_lines(summary, width), *shown, _cut(status, width), _cut(KEYS, width))


def _summary_lines(summary: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """As many values in a line as it has room for."""
    lines, line = [], Text()
    for title, value in summary:
        added = Text.assemble((f"{title} ", "dim"), (value, "bold"))
        if len(line) and len(line) + _GAP + len(added) > width:
            lines.append(line)
            line = Text()
        line = Text.assemble(line, " " * _GAP if len(line) else "", added)
    return [*lines, line]


def _table(table: Table, sorted_by: int, chosen: bool, ascending: bool, width: int) -> RichTable:
    columns = _that_fit(table.columns, width)
    by = sorted_by % len(columns)
    drawn = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, title_justify="left")
    for place, column in enumerate(columns):
        mark = ("▲" if ascending else "▼") if place == by and chosen else ""
        drawn.add_column(
            column.title + mark,
            justify="right" if place else "left",
            no_wrap=True,
            header_style="bold",
        )
    for row in sorted(table.rows, key=lambda row: _order(row[by]), reverse=not ascending):
        style = "bold red" if "DOWN" in row else ""
        cells = [column.show(value) for column, value in zip(columns, row, strict=False)]
        drawn.add_row(*cells, style=style)
    return drawn


def _that_fit(columns: Sequence[Column], width: int) -> Sequence[Column]:
    taken, fitting = 0, 0
    for column in columns:
        taken += max(column.width, len(column.title) + 1) + _GAP
        if taken > width and fitting > 1:
            break
        fitting += 1
    return columns[:fitting]


def _order(value: Value) -> tuple[bool, float, str]:
    """Names by their letters; a missing number is the smallest."""
    if isinstance(value, str):
        return True, 0.0, value
    return value is not None, value or 0.0, ""


def _cut(text: str, width: int) -> Text:
    return Text(text[:width], style="dim", no_wrap=True, overflow="crop")

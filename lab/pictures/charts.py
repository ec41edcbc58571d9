"""What charts and pictures of boards share: colours and text that read on light and dark pages."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

COLOURS = ("#2f7ed8", "#d9731a", "#3d9a40", "#9a5fd0", "#149aa2", "#d1408c", "#94830a", "#cc4b43")
"""Each at least 3:1 on white and on GitHub's dark grey."""
INK = "#7d8590"
"""Text and axes: 4:1 on both."""
_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "spindle",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """A figure without background, and its axes [row][column]. Inches."""
    mpl.rcParams.update(_STYLE)
    made = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = made.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.set_facecolor("none")
    return made, axes


def save(made: Figure, path: Path, **options: Any) -> None:
    """The same numbers give the same file."""
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    made.savefig(path, metadata=metadata, **options)


def legend(axes: Any, columns: int = 1, place: str = "best") -> None:
    """`place`: matplotlib's, whose best one overlooks stacked areas."""
    axes.legend(loc=place, fontsize=8.5, ncols=columns, handlelength=1.2, columnspacing=1)

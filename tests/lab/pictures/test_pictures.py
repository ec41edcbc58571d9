"""The docs' pictures: small, linked, without anything from other hosts, and charts from tables."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab.pictures.board_picture import board
from lab.pictures.charts import save
from lab.pictures.drills import DRILLS, faster
from lab.pictures.plots import CHARTS, DOCS, number, table
from lab.pictures.plots import IMAGES as CHARTS_FOLDER
from lab.pictures.prometheus import ALERTS

ROOT = Path(__file__).parents[3]
IMAGES = [*(ROOT / "docs" / "images").iterdir(), *CHARTS_FOLDER.iterdir()]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *DOCS.glob("*.md")]
MOST_BYTES = 200_000


@pytest.mark.parametrize("image", sorted(IMAGES), ids=lambda path: path.name)
def test_each_image_is_small_and_shown_on_a_page(image: Path) -> None:
    assert image.stat().st_size <= MOST_BYTES
    assert any(f"images/{image.name})" in page.read_text() for page in PAGES), "no page shows it"
    if image.suffix == ".svg":
        drawn = image.read_text()
        assert not re.search(r"(href|src)=\"(?!#)|@import|url\((?!#)", drawn)
        ET.fromstring(drawn)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_drawn_from_its_table_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    for copy in ("one", "two"):
        save(CHARTS[name](), tmp_path / f"{copy}.svg")
    first = (tmp_path / "one.svg").read_text()
    assert first == (tmp_path / "two.svg").read_text()
    assert first == (CHARTS_FOLDER / f"{name}.svg").read_text(), "draw it again with make plots"


def test_a_table_that_is_gone_is_named() -> None:
    with pytest.raises(ValueError, match="no table whose header begins"):
        table("chaos.md", "| gone")
    assert table("chaos.md", "| killed | streams")["drafter"][0] == "240"
    assert number("**1,234.5 s**") == 1234.5
    assert DOCS.is_dir()


def test_drills_expect_alerts_that_there_are_and_shorten_all_their_times() -> None:
    rules = ALERTS.read_text()
    for drill in DRILLS:
        assert set(drill.panels) <= {panel["title"] for panel in board(drill.board)["panels"]}
    assert all(f"alert: {name}\n" in rules for drill in DRILLS for name in drill.expected)
    shortened = faster(rules)
    assert "[30000ms]" in shortened
    assert not re.search(r"\[\d+[smh]\]|(for:|offset) \d+[smh]\b", shortened)

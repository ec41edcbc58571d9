"""The docs' pictures: small, linked, and without anything from other hosts."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = [*(ROOT / "docs" / "images").iterdir(), *(ROOT / "lab" / "docs" / "images").iterdir()]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "lab" / "docs").glob("*.md"),
]
MOST_BYTES = 200_000


@pytest.mark.parametrize("image", sorted(IMAGES), ids=lambda path: path.name)
def test_each_image_is_small_and_shown_on_a_page(image: Path) -> None:
    assert image.stat().st_size <= MOST_BYTES
    assert any(f"images/{image.name})" in page.read_text() for page in PAGES), "no page shows it"
    if image.suffix == ".svg":
        drawn = image.read_text()
        assert not re.search(r"(href|src)=\"(?!#)|@import|url\((?!#)", drawn)
        ET.fromstring(drawn)

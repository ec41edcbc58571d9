"""docs/compatibility.md: what works with what, each cell by a test that has both or by a refusal.

`python -m tests.test_compatibility` writes the page from tests/compatibility.yaml.
"""

import re
from itertools import combinations, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import yaml

from cluster.config import AppConfig, ValidationError, problems

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "compatibility.md"
TABLE: dict[str, Any] = yaml.safe_load((TESTS / "compatibility.yaml").read_text())
REFUSED = TABLE["refused"]
BEGINNING = """# What works with what

✓: a test has both at once, named below by its letter. ✗: refused, with the error below. A number
alone says what happens instead; a dot: no test has them together. Tests run in fp32 on a CPU:
**nothing has been run on a GPU**. Copies are drafters of kind `quantized`; quantized weights are
the target's; ranks are tensor parallel; other tokenizers are those of small models.

"""


def page() -> str:
    marks, features = _marks(), TABLE["features"]
    rows = [["", *features[:-1]], ["---"] * len(features)]
    for number, feature in enumerate(features[2:], 2):
        cells = [marks.get(frozenset((feature, other)), "·") for other in features[:number]]
        rows.append([feature, *cells, *[""] * (len(features) - 1 - number)])
    table = [f"|{'|'.join(row)}|" for row in rows]
    tests = [
        f"- {letter}: `tests/{test}`"
        for letter, test in zip(ascii_lowercase, TABLE["shown"], strict=False)
    ]
    notes = [f"- {number}: {what}" for number, (_, what) in enumerate(_notes(), 1)]
    return "\n".join([f"{BEGINNING}{table[0]}", *table[1:], "", *tests, "", *notes, ""])


def _marks() -> dict[frozenset[str], str]:
    """By pair: the first test that has both, or a note."""
    found: dict[frozenset[str], str] = {}
    for letter, together in zip(ascii_lowercase, TABLE["shown"].values(), strict=False):
        places = [[one] if isinstance(one, str) else one for one in together]
        assert {one for place in places for one in place} <= {*TABLE["features"]}
        for one, other in combinations(places, 2):
            for pair in product(one, other):
                found.setdefault(frozenset(pair), f"✓ {letter}")
    for number, (pairs, _) in enumerate(_notes(), 1):
        mark = f"✗ {number}" if number <= len(REFUSED) else str(number)
        noted = dict.fromkeys(map(frozenset, pairs), mark)
        assert not found.keys() & noted.keys(), "shown, and refused"
        found |= noted
    return found


def _notes() -> list[tuple[list[list[str]], str]]:
    refused = [([one["pair"]], f"refused: `{one['error']} ...`") for one in REFUSED]
    return refused + [(one["pairs"], one["what"]) for one in TABLE["otherwise"]]


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == page(), "rewrite it with python -m tests.test_compatibility"


@pytest.mark.parametrize("test", [*TABLE["shown"], *(one["test"] for one in TABLE["otherwise"])])
def test_a_test_that_a_cell_names_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("one", REFUSED, ids=lambda one: "-".join(one["pair"]))
def test_what_is_refused_is_refused_by_the_configs_check(one: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        AppConfig.model_validate(one["config"])
    assert any(line.startswith(one["error"]) for line in problems(refusal.value))


if __name__ == "__main__":
    PAGE.write_text(page())

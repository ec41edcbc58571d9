"""The drafter of CONTRIBUTING.md works as it is written there, and so do its entry and test."""

import re
from pathlib import Path
from typing import Any

import pytest

from actors.hosts.direct import make_lookup
from cluster.config import AppConfig
from cluster.config.drafter_kinds import DRAFTER_KINDS, DrafterKind
from tests.engine.drafters.orders import Stream

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"
THERE, HERE = "engine.drafters.repeat", "repeat_of_the_guide"


def test_the_drafter_of_the_guide_drafts_with_one_file_and_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = GUIDE.read_text().partition("## Add a drafter")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code, entry, test = (block.replace(THERE, HERE) for block in blocks)
    (tmp_path / f"{HERE}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind in eval(f"{{{entry}}}", {"DrafterKind": DrafterKind}).items():
        monkeypatch.setitem(DRAFTER_KINDS, name, kind)
    config = AppConfig.model_validate({"drafters": [{"name": "mine", "kind": "repeat"}]})
    drafter = make_lookup(config.drafters[0])
    assert drafter.name == "mine"
    assert len(Stream("a", [1, 2, 3]).draft(drafter, depth=0)) == 0
    tests: dict[str, Any] = {}
    exec(test, tests)
    tests["test_the_last_token_is_proposed_again_and_again"]()

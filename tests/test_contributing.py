"""The drafter of CONTRIBUTING.md works as it is written there."""

import re
from pathlib import Path

import pytest

from actors.hosts.direct import make_lookup
from cluster.config import AppConfig
from cluster.config.drafter_kinds import DRAFTER_KINDS, DrafterKind
from cluster.placement import plan
from deployments.replica.host_specs import drafter_specs
from tests.engine.drafters.orders import Stream

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_the_drafter_of_the_guide_drafts_with_one_file_and_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = GUIDE.read_text().partition("## Add a drafter")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    (tmp_path / "repeat_of_the_guide.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    made_by = "repeat_of_the_guide:RepeatDrafter"
    entry = DrafterKind("the last token again and again", made_by=made_by, lookup=True)
    monkeypatch.setitem(DRAFTER_KINDS, "repeat", entry)
    config = AppConfig.model_validate({"drafters": [{"name": "mine", "kind": "repeat"}]})
    (spec,) = drafter_specs(config, plan(config))
    drafter = make_lookup(spec)
    assert drafter.name == "mine"
    stream = Stream("a", [1, 2, 3])
    assert stream.draft(drafter, depth=3).tokens.tolist() == [3, 3, 3]
    stream.committed.extend([7])
    assert stream.draft(drafter, depth=2).tokens.tolist() == [7, 7]
    assert len(stream.draft(drafter, depth=0)) == 0

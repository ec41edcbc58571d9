"""Versions on disk: what is whole is found again, whatever lies beside it."""

from pathlib import Path

import pytest
import torch

from engine.learning.versions import Version, VersionFolder


def version(number: int) -> Version:
    return Version({"fc.weight": torch.full((2, 3), number).bfloat16()}, {"version": number})


def number_of(found: Version | None) -> int | None:
    return None if found is None else int(found.weights["fc.weight"][0, 0])


@pytest.mark.parametrize("damage", [b"", b"\0" * 99, None], ids=["empty", "zeros", "one bit"])
def test_the_newest_whole_version_is_served_after_a_restart(
    damage: bytes | None, tmp_path: Path
) -> None:
    folder = VersionFolder(tmp_path / "versions", most=2)
    assert folder.served() is None
    for number in range(1, 6):
        folder.add(version(number))
        if number <= 4:
            folder.serve(number)  # the fifth is a canary, which is tried again after a restart
    found = VersionFolder(tmp_path / "versions", most=2)
    assert (number_of(found.served()), found.newest) == (4, 5)
    files = sorted((tmp_path / "versions").glob("0*"))
    assert [file.stem for file in files] == ["000004", "000005"]
    found.serve(5)
    content = files[1].read_bytes()
    files[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    assert number_of(found.served()) == 4
    files[0].write_bytes(b"no version")
    assert found.served() is None


def test_a_folder_that_cannot_be_written_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the folder's place")
    folder = VersionFolder(tmp_path / "file", most=2)
    folder.add(version(1))
    folder.serve(1)
    folder.save_candidate(version(1))
    stuck = tmp_path / "kept" / "000001.safetensors"
    stuck.mkdir(parents=True)  # cannot be unlinked
    for number in (2, 3, 4):
        VersionFolder(tmp_path / "kept", most=2).add(version(number))
    assert folder.served() is folder.candidate() is None
    assert len(caplog.records) >= 4

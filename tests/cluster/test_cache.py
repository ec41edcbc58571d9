"""A kept file is there whole or not at all, and a digest is that of the whole file, whatever was
remembered of it before."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from cluster import cache
from cluster.cache import digest, written_whole


def test_a_file_takes_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    with written_whole(path) as partial:
        partial.write_text("first")
        assert not path.exists()
        assert partial.suffix == path.suffix
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_after_an_error_the_old_file_stays_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("old")

    def fail() -> None:
        with written_whole(path) as partial:
            partial.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


SIZE = 4 << 20


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_SETTLED_NS", 0)
    made = tmp_path / "model.gguf"
    made.write_bytes(bytes(SIZE))
    return made


def alter(file: Path) -> None:
    """In the middle, and with the times of before, as far as its owner can set them."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(SIZE // 2)
        opened.write(b"altered")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_an_alteration_in_the_middle_is_seen_although_all_times_are_set_back(file: Path) -> None:
    before = digest(file)
    alter(file)
    assert digest(file) != before


def test_another_file_in_its_place_is_seen(file: Path) -> None:
    before = digest(file)
    other = file.with_name("other")
    other.write_bytes(b"x" * SIZE)
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert digest(file) != before


def test_an_unaltered_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest(file)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert digest(file) == first


def test_a_file_that_was_just_changed_is_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_SETTLED_NS", 1 << 60)
    digest(file)
    assert not list(file.parent.glob("cache/digests/*"))


def test_a_file_that_is_altered_while_it_is_read_has_no_digest(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = hashlib.file_digest

    def altering(*arguments: Any) -> object:
        alter(file)
        return read(*arguments)

    monkeypatch.setattr(hashlib, "file_digest", altering)
    with pytest.raises(ValueError, match="was altered while it was read; start again"):
        digest(file)

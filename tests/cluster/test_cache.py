"""A kept file is there whole or not at all, and a digest changes with its file."""

from pathlib import Path

import pytest

from cluster.cache import check_room, written_whole


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


def test_a_folder_without_room_is_named_with_what_is_needed(tmp_path: Path) -> None:
    check_room(tmp_path / "new", 1)
    with pytest.raises(OSError, match=rf"{tmp_path} has .* MB left, and 1000000000 MB are needed"):
        check_room(tmp_path, 10**15)

"""The texts of tokens are the same from the tokenizer and from the file that keeps them."""

from pathlib import Path

import pytest

from cluster.built_in_models import TARGET, model_path
from engine.grammar import vocabulary
from engine.grammar.vocabulary import token_texts

SIZE = 2048


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path))
    return tmp_path / "vocabularies"


def test_a_process_reads_what_an_earlier_one_has_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its tokenizer, which would hold up every stream of the process meanwhile."""
    first = token_texts(model_path(TARGET), SIZE)
    monkeypatch.delattr(vocabulary, "load_tokenizer")
    assert token_texts(model_path(TARGET), SIZE) == first
    assert len(list(kept.iterdir())) == 1


def test_another_tokenizer_has_a_file_of_its_own(kept: Path, tmp_path: Path) -> None:
    token_texts(model_path(TARGET), SIZE)
    other = tmp_path / "other"
    other.mkdir()
    for file in model_path(TARGET).glob("tokenizer*"):
        (other / file.name).write_bytes(file.read_bytes() + b"\n")
    token_texts(other, SIZE)
    token_texts(other, SIZE + 1)
    assert len(list(kept.iterdir())) == 3


def test_a_broken_file_and_a_folder_that_cannot_be_written_to_do_no_harm(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = token_texts(model_path(TARGET), SIZE)
    (file,) = kept.iterdir()
    for broken in (b"", b"no archive", file.read_bytes()[:1000]):
        file.write_bytes(broken)
        assert token_texts(model_path(TARGET), SIZE) == first
    monkeypatch.setenv("SPINDLE_CACHE", "/dev/null")
    assert token_texts(model_path(TARGET), SIZE) == first

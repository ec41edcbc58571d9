"""The command line: `inflate` prints where the model lies, and refuses what is no count."""

import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

from lab.zoo.__main__ import main


def inflate(count: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINDLE_CACHE", str(cache))
    monkeypatch.setattr(sys, "argv", ["lab.zoo", "inflate", "--params", count])
    main()


def test_inflate_prints_the_path_of_a_loadable_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inflate("5M", tmp_path, monkeypatch)
    path = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert path.parent == tmp_path
    assert AutoConfig.from_pretrained(path).model_type == "llama"


def test_a_wrong_count_is_refused_with_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        inflate("ninety", tmp_path, monkeypatch)
    assert ended.value.code == 2
    assert "90M" in capsys.readouterr().err


def test_a_target_that_is_no_llama_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.zoo", "train-head", "--target", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "has no config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(SystemExit):
        main()
    assert "has model_type 'qwen3'" in (refusal := capsys.readouterr().err)
    assert "trained with speculators" in refusal

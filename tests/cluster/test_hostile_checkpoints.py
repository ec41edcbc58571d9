"""Broken and hostile files of a checkpoint: a config check names the file and the way out."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.built_in_models import model_path
from cluster.check import main as check
from cluster.checkpoints import parameters
from cluster.config import TargetConfig

DEEP = "[" * 100_000
INDEX = "model.safetensors.index.json"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(model_path("target"), folder)
    return folder


def refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `cluster.check` says of a config with this target, in one line."""
    args = {"target": {"model": str(checkpoint)}}
    file = checkpoint.parent / "serve.yaml"
    file.write_text(json.dumps({"applications": [{"name": "app", "args": args}]}))
    assert check([str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *((file, DEEP) for file in ("config.json", "generation_config.json", "tokenizer.json")),
        *((file, "[1]") for file in ("config.json", "generation_config.json", "tokenizer.json")),
        ("tokenizer_config.json", DEEP),
        ("config.json", "\x00"),
        ("config.json", "null"),
    ],
)
def test_a_file_that_is_no_object_is_named(
    file: str, content: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / file).write_text(content)
    line = refused(checkpoint, capsys)
    assert str(checkpoint / file) in line
    assert "fetch it again" in line


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("config.json", {"text_config": "sizes"}),
        ("config.json", {"quantization_config": "awq"}),
        ("config.json", {"vocab_size": -1}),
        ("config.json", {"head_dim": -64}),
        ("config.json", {"num_hidden_layers": 1 << 40}),
        ("generation_config.json", {"eos_token_id": [[1]]}),
        ("tokenizer_config.json", {"eos_token": "x", "added_tokens_decoder": {"one": {}}}),
        ("tokenizer_config.json", {"eos_token": "x", "added_tokens_decoder": {"1": 7}}),
    ],
)
def test_a_field_of_the_wrong_type_or_beyond_any_model_is_named(
    file: str, fields: dict[str, Any], checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(checkpoint / file, **fields)
    line = refused(checkpoint, capsys)
    assert str(checkpoint) in line
    assert "fetch it again" in line


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({}, "cannot be read"),
        ({"weight_map": ["a"]}, "cannot be read"),
        ({"weight_map": {"a": 7}}, "cannot be read"),
        *(
            ({"weight_map": {"model.norm.weight": name}}, f"{name} is outside of the checkpoint's")
            for name in ("/etc/passwd", "../secret.safetensors", "a/../../secret")
        ),
    ],
)
def test_an_index_of_another_form_or_of_files_elsewhere_is_refused(
    index: dict[str, Any], said: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint.parent / "secret.safetensors")
    change(checkpoint / INDEX, **index)
    assert said in refused(checkpoint, capsys)


@pytest.mark.parametrize(
    "broken",
    [
        lambda content: content[:5],
        lambda content: (1 << 62).to_bytes(8, "little") + content[8:],
        lambda content: content[:8] + b"[" * 5000 + content[5008:],
    ],
)
def test_weights_with_a_broken_header_are_named(
    broken: Callable[[bytes], bytes], checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(broken(file.read_bytes()))
    assert f"{file} cannot be read" in refused(checkpoint, capsys)


class Touching:
    """Creates a file wherever it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


def test_pickled_weights_are_refused_and_not_unpickled(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "model.safetensors").unlink()
    touched = tmp_path / "unpickled"
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Touching(touched)))
    assert parameters(checkpoint) is None
    line = refused(checkpoint, capsys)
    assert "pytorch_model.bin is not read, because a pickle may run any code" in line
    with pytest.raises(ValueError, match="is not read, because a pickle may run any code"):
        TargetConfig.model_construct(model=str(checkpoint)).path()
    assert not touched.exists()

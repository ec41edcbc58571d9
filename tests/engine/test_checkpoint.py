"""A checkpoint's own code never runs, on either backend; a broken file is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from cluster.built_in_models import TARGET, model_path
from engine.checkpoint import load_config, load_stock, load_whole
from engine.errors import InvalidEngineArgs, SpindleError, UnreadableCheckpoint
from engine.tokenizer import load_tokenizer
from engine.verifiers.vllm.loading import VllmSpec, engine_config


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(model_path(TARGET), folder)
    return folder


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the checkpoint's code would create."""
    return tmp_path / "ran"


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def add_code(checkpoint: Path, ran: Path, **fields: Any) -> None:
    (checkpoint / "own.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    auto = {f"Auto{kind}": f"own.Own{kind}" for kind in ("Config", "Model", "ModelForCausalLM")}
    change(checkpoint / "config.json", auto_map=auto, **fields)
    change(
        checkpoint / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizerFast"]},
    )


def load_native(checkpoint: Path) -> object:
    return load_stock(checkpoint, torch.float32)


def load_for_vllm(checkpoint: Path) -> object:
    return engine_config(VllmSpec(checkpoint, "float32", 2048))


LOADS = [load_native, load_whole, load_config, load_for_vllm]


@pytest.mark.parametrize("load", [*LOADS, load_tokenizer])
def test_a_checkpoint_that_needs_its_own_code_is_refused(
    load: Callable[[Path], object], checkpoint: Path, ran: Path
) -> None:
    add_code(checkpoint, ran, model_type="own", architectures=["OwnModelForCausalLM"])
    with pytest.raises(UnreadableCheckpoint, match=r"custom code|does not recognize"):
        load(checkpoint)
    assert not ran.exists()


@pytest.mark.parametrize("load", LOADS)
def test_a_known_model_runs_without_the_code_beside_it(
    load: Callable[[Path], object], checkpoint: Path, ran: Path
) -> None:
    add_code(checkpoint, ran)
    load(checkpoint)
    assert not ran.exists()


def test_no_argument_lets_a_checkpoints_code_run() -> None:
    spec = VllmSpec(model_path(TARGET), "float32", 2048, engine_args={"trust_remote_code": True})
    with pytest.raises(InvalidEngineArgs, match="trust_remote_code: code that a checkpoint brings"):
        engine_config(spec)


@pytest.mark.parametrize(
    ("file", "content", "load"),
    [
        ("config.json", "[" * 100_000, load_config),
        ("config.json", '{"model_type": 7}', load_config),
        ("config.json", "[]", load_for_vllm),
        ("config.json", "{}", load_native),
        ("tokenizer.json", "[" * 100_000, load_tokenizer),
        ("tokenizer.json", "{}", load_tokenizer),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": 1}}', load_tokenizer),
        ("tokenizer_config.json", "[" * 100_000, load_tokenizer),
        ("tokenizer_config.json", '{"tokenizer_class": 7}', load_tokenizer),
        ("generation_config.json", "[" * 100_000, load_native),
        ("generation_config.json", "[1]", load_native),
        ("model.safetensors", "{}", load_native),
    ],
)
def test_a_broken_file_is_an_error_of_ours(
    file: str, content: str, load: Callable[[Path], object], checkpoint: Path
) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(SpindleError, match="fetch it again") as refused:
        load(checkpoint)
    assert str(checkpoint) in str(refused.value)


def test_a_model_that_the_files_cannot_hold_is_not_allocated(tmp_path: Path) -> None:
    """4 TB, which only the table of positions would have."""
    small = GPT2Config(vocab_size=100, n_embd=64, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(small).save_pretrained(tmp_path)
    change(tmp_path / "config.json", n_positions=1 << 34)
    with pytest.raises(UnreadableCheckpoint, match=r"config\.json .* and the files have 60,608"):
        load_whole(tmp_path)

"""Which files of a folder are the checkpoint's, and what the small ones say."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.checkpoint_files import has_tokenizer, quantization, stop_token_ids, weight_files

ADDED = [{"id": 7, "content": "<|im_end|>"}, {"id": 2, "content": "</s>"}]


def folder(path: Path, **files: Any) -> Path:
    """`files`: contents of JSON files, by their names without the ending."""
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("there", "read"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "head.safetensors"], ["head.safetensors"]),
        (["a-1-of-2.safetensors", "a-2-of-2.safetensors"], ["a-1-of-2", "a-2-of-2"]),
        (["model.bin"], []),
    ],
)
def test_another_formats_weights_are_left_out(
    there: list[str], read: list[str], tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).touch()
    expected = [name.removesuffix(".safetensors") for name in read]
    assert [file.stem for file in weight_files(tmp_path)] == expected


def test_an_index_names_the_weights(tmp_path: Path) -> None:
    for name in ("one", "two", "old"):
        (tmp_path / f"{name}.safetensors").touch()
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "no.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [file.stem for file in weight_files(tmp_path)] == ["one", "two"]


def test_options_of_a_tokenizer_are_no_tokenizer(tmp_path: Path) -> None:
    assert not has_tokenizer(folder(tmp_path, tokenizer_config={}))
    assert has_tokenizer(folder(tmp_path, tokenizer={}))


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization_config": {"bits": 4}}, "of a method that config.json does not name"),
    ],
)
def test_quantized_weights_are_recognised(
    config: dict[str, Any], method: str | None, tmp_path: Path
) -> None:
    assert quantization(folder(tmp_path, config=config)) == method


def test_modelopt_says_so_in_a_file_of_its_own(tmp_path: Path) -> None:
    assert quantization(folder(tmp_path, config={}, hf_quant_config={})) == "modelopt"


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({"config": {"eos_token_id": 2}}, (2,)),
        ({"config": {"eos_token_id": 2}, "generation_config": {"eos_token_id": [3, 4]}}, (3, 4)),
        ({"config": {"text_config": {"eos_token_id": 5}}, "generation_config": {}}, (5,)),
        ({"config": {}}, ()),
        # A chat model whose generation config is still the base model's.
        (
            {
                "config": {"eos_token_id": 2},
                "tokenizer_config": {"eos_token": "<|im_end|>"},
                "tokenizer": {"added_tokens": ADDED},
            },
            (2, 7),
        ),
        (
            {
                "config": {},
                "tokenizer_config": {
                    "eos_token": {"content": "<|im_end|>"},
                    "added_tokens_decoder": {"7": {"content": "<|im_end|>"}},
                },
            },
            (7,),
        ),
    ],
)
def test_an_answer_ends_where_any_file_says(
    files: dict[str, Any], stops: tuple[int, ...], tmp_path: Path
) -> None:
    assert stop_token_ids(folder(tmp_path, **files)) == stops

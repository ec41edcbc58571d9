"""A GGUF file as llama.cpp would write it of a known model is read as that model."""

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.checkpoint_files import stop_token_ids
from cluster.gguf_conversion import convert
from cluster.gguf_reader import UnsupportedGguf
from tests.cluster.gguf_files import TEXTS, model, tokenizer, write


@pytest.mark.parametrize(
    ("kind", "splitting"),
    [("llama", "smollm"), ("llama", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2")],
)
def test_weights_and_tokens_are_those_of_the_model(
    kind: str, splitting: str, tmp_path: Path
) -> None:
    tokens = tokenizer(splitting)
    original = model(tokens.get_vocab_size(), kind)
    write(tmp_path / "model.gguf", original, tokens, splitting=splitting)
    convert(tmp_path / "model.gguf", tmp_path / "read")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "read")
    assert read.dtype == torch.float32
    for name, weight in original.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight), name
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        assert torch.equal(read(ids).logits, original(ids).logits)
    assert read.generation_config.eos_token_id == 2
    known = AutoTokenizer.from_pretrained(tmp_path / "read")
    first = [1] if splitting == "llama-bpe" else []  # such files begin texts with a token
    for text in TEXTS:
        assert known(text)["input_ids"] == first + tokens.encode(text).ids
        assert known.decode(known(text)["input_ids"][len(first) :]) == text
    chat = known.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"
    assert known.eos_token == "<|im_end|>"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    tokens = tokenizer()
    write(tmp_path / "m.gguf", model(tokens.get_vocab_size()), tokens, architecture="gemma")
    with pytest.raises(
        UnsupportedGguf, match=r"general.architecture is gemma; only llama, qwen2, qwen3"
    ):
        convert(tmp_path / "m.gguf", tmp_path / "read")
    assert not (tmp_path / "read").exists()


def test_one_part_of_a_model_is_refused(tmp_path: Path) -> None:
    tokens = tokenizer()
    file = tmp_path / "m-00001-of-00002.gguf"
    write(file, model(tokens.get_vocab_size()), tokens, fields={"split.count": 2})
    with pytest.raises(UnsupportedGguf, match="one of 2 parts: put them together"):
        convert(file, tmp_path / "read")
    writer = GGUFWriter(file, "")  # later parts say nothing else
    writer.kv_data[0].clear()
    writer.add_uint32("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedGguf, match="one of 2 parts: put them together"):
        convert(file, tmp_path / "read")


def test_the_end_of_a_turn_ends_an_answer_too(tmp_path: Path) -> None:
    tokens = tokenizer()
    ends = {"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2}
    write(tmp_path / "m.gguf", model(tokens.get_vocab_size()), tokens, fields=ends)
    convert(tmp_path / "m.gguf", tmp_path / "read")
    assert stop_token_ids(tmp_path / "read") == (1, 2)

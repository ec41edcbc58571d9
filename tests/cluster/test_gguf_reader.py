"""Broken and hostile GGUF files end with an error that names the file, at once and at any byte."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from cluster.gguf_conversion import convert
from cluster.gguf_reader import UnsupportedGguf, open_gguf
from tests.cluster.gguf_files import model, tokenizer, write

_MAGIC = 0x46554747
_UINT8, _STRING, _ARRAY = 0, 8, 9
HUGE = 1 << 40


def head(tensors: int, fields: int, content: bytes = b"") -> bytes:
    return struct.pack("<IIQQ", _MAGIC, 3, tensors, fields) + content


def field(kind: int, content: bytes, name: bytes = b"general.name") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + content


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        head(0, HUGE),
        head(HUGE, 0),
        head(0, 1, field(_STRING, struct.pack("<Q", HUGE))),
        head(0, 1, field(_ARRAY, struct.pack("<IQ", _UINT8, HUGE))),
        head(0, 1, field(_ARRAY, struct.pack("<IQ", _STRING, HUGE))),
        head(0, 1, field(_ARRAY, struct.pack("<IQ", _ARRAY, 1) * 5000)),
        head(1, 0, struct.pack("<QI", 0, 0xFFFFFFFF)),
        head(1, 0, struct.pack("<QIQQIQ", 0, 2, HUGE, HUGE, 0, 0)),
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_claims_beyond_the_files_end_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(UnsupportedGguf, match=r"m\.gguf is no GGUF file: .*; fetch it again"):
        open_gguf(file)


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    infos = [
        struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 1024, 0, 0)
        for name in (b"token_embd.weight", b"output.weight")
    ]
    file = tmp_path / "m.gguf"
    file.write_bytes(head(2, 0, b"".join(infos)).ljust(160, b"\0") + bytes(4096))
    with pytest.raises(UnsupportedGguf, match="its tensors share their bytes"):
        open_gguf(file)


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("llama.attention.head_count", lambda writer, name: writer.add_uint32(name, 0)),
        ("llama.embedding_length", lambda writer, name: writer.add_string(name, "many")),
        ("tokenizer.ggml.bos_token_id", lambda writer, name: writer.add_uint32(name, 1 << 31)),
        ("tokenizer.ggml.tokens", lambda writer, name: writer.add_uint32(name, 7)),
        ("tokenizer.ggml.token_type", lambda writer, name: writer.add_array(name, [1])),
        ("tokenizer.ggml.merges", lambda writer, name: writer.add_array(name, ["a b c"])),
        ("tokenizer.chat_template", lambda writer, name: writer.add_uint32(name, 7)),
        ("split.count", lambda writer, name: writer.add_string(name, "two")),
    ],
)
def test_a_field_of_the_wrong_kind_names_the_file(
    name: str,
    add: Callable[[GGUFWriter, str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(name, None)
        add(writer, name)
        header(writer)

    header = GGUFWriter.write_header_to_file
    monkeypatch.setattr(GGUFWriter, "write_header_to_file", written)
    tokens = tokenizer()
    write(tmp_path / "m.gguf", model(tokens.get_vocab_size()), tokens)
    with pytest.raises(UnsupportedGguf, match=r"m\.gguf cannot be read \(.*\); fetch it again"):
        convert(tmp_path / "m.gguf", tmp_path / "read")


def test_no_altered_byte_raises_anything_else(tmp_path: Path) -> None:
    """Each of these is one byte off, or cut short."""
    tokens = tokenizer()
    whole = tmp_path / "whole.gguf"
    write(whole, model(tokens.get_vocab_size()), tokens)
    content = whole.read_bytes()
    random = np.random.default_rng(0)
    heads = content.index(b"token_embd.weight") + 2000
    for number in range(60):
        at = int(random.integers(heads))
        file = tmp_path / f"{number}.gguf"
        broken = bytearray(content)
        broken[at] ^= 1 << int(random.integers(8))
        file.write_bytes(broken if number % 4 else content[:at])
        with suppress(UnsupportedGguf):
            convert(file, tmp_path / str(number))

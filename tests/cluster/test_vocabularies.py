"""Which tokens two tokenizers share, however each of them writes its pieces."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.built_in_models import model_path
from cluster.vocabularies import has_same_ids, read_vocabulary, shared_tokens

BYTE_LEVEL = {"type": "ByteLevel"}
SENTENCE_PIECE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def checkpoint(
    folder: Path, pieces: list[str], decoder: dict[str, Any], special: tuple[str, ...] = ()
) -> Path:
    """Special tokens are last; the model has two embeddings too many, as padded ones have."""
    folder.mkdir()
    sizes = {"max_position_embeddings": 64, "hidden_size": 8, "num_attention_heads": 1}
    size = len(pieces) + len(special) + 2
    config = sizes | {"vocab_size": size, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    added = [
        {"id": number, "content": name, "special": True}
        for number, name in enumerate(special, len(pieces))
    ]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    content = {"model": {"vocab": vocabulary}, "decoder": decoder, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_tokens_are_the_same_by_their_bytes_and_special_ones_by_their_names(tmp_path: Path) -> None:
    """A space, a line break, half of a sign, and a special token beside the same letters."""
    target = checkpoint(
        tmp_path / "target", ["Ġa", "Ċ", "Ã", "©", "Ã©", "only", "<end>"], BYTE_LEVEL, ("<s>",)
    )
    drafter = checkpoint(
        tmp_path / "drafter",
        ["<0x0A>", "<0xC3>", "é", "▁a", "\n", "<s>"],
        SENTENCE_PIECE,
        ("<end>", "<s>"),
    )
    shared = shared_tokens(target, drafter)
    assert shared is not None
    assert shared.ids == {0: 3, 1: 4, 2: 1, 4: 2, 7: 7}


def test_what_is_not_shared_is_spelled_by_the_longest_pieces(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "target", ["abcd", "b", "xb", "x"], BYTE_LEVEL, ("ab",))
    drafter = checkpoint(tmp_path / "drafter", ["b", "cd", "a", "bcd"], BYTE_LEVEL)
    shared = shared_tokens(target, drafter)
    assert shared is not None
    assert shared.spelled(7) == [[2, 3], [0], [0], [], [2, 0], [], []]


def test_ids_are_only_taken_for_the_same_where_the_tokenizers_say_so(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", ["a", "b"], BYTE_LEVEL)
    swapped = checkpoint(tmp_path / "swapped", ["b", "a"], BYTE_LEVEL)
    larger = checkpoint(tmp_path / "larger", ["a", "b", "c"], BYTE_LEVEL)
    bare = checkpoint(tmp_path / "bare", ["a", "b"], BYTE_LEVEL)
    (bare / "tokenizer.json").unlink()
    other_format = checkpoint(tmp_path / "other_format", ["a", "b"], BYTE_LEVEL)
    (other_format / "tokenizer.json").unlink()
    (other_format / "tokenizer.model").write_bytes(b"\x0a\x01")
    same = {other.name: has_same_ids(one, other) for other in (swapped, larger, bare, other_format)}
    assert same == {"swapped": False, "larger": False, "bare": True, "other_format": False}
    assert shared_tokens(one, bare) is None
    with pytest.raises(ValueError, match=r"other_format has no tokenizer\.json"):
        shared_tokens(one, other_format)
    tokenizer = json.loads((one / "tokenizer.json").read_text())
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    assert has_same_ids(one, bare)


def test_a_tokenizer_that_writes_its_pieces_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "target", ["a"], BYTE_LEVEL)
    word_piece = checkpoint(tmp_path / "other", ["a", "##b"], {"type": "WordPiece"})
    with pytest.raises(ValueError, match=r"other.*WordPiece is neither byte-level nor"):
        shared_tokens(target, word_piece)


def test_every_token_of_a_real_tokenizer_stands_for_a_text_of_its_own(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(model_path("target"), 2048)
    assert len(vocabulary.special) == 5
    assert len({*vocabulary.texts.values()}) == 2048 - 5
    assert {bytes([byte]) for byte in range(256)} <= {*vocabulary.texts.values()}
    copied = shutil.copytree(model_path("target"), tmp_path / "copy")
    assert has_same_ids(model_path("target"), copied)

"""Which tokens of two tokenizers stand for the same text: the intersection by which a drafter with
a tokenizer of its own drafts (token-level intersection, algorithm 4 in Timor et al., "Accelerating
LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies", 2025).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.checkpoint_files import has_tokenizer, names_checkpoint, read_json, tokenizer_bytes
from cluster.checkpoints import architecture

TOKENIZER = "tokenizer.json"
SAVE_IT = "write it with transformers (AutoTokenizer, save_pretrained), or choose another drafter"
LEAST_SHARED = 0.05
"""The share of the target's tokens below which a drafter is refused."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + place): byte for place, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))
}
"""The byte that each sign of a byte-level tokenizer's pieces stands for, as in GPT-2."""
_SPACE = "▁"
"""What SentencePiece writes for a space."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""What it writes for a byte that is in no other piece."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer, by id, lowest first."""

    texts: Mapping[int, bytes]
    special: Mapping[int, str]
    """Those that stand for no text, such as the end of an answer, by their names."""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """What a drafter with another tokenizer than the target's needs to know."""

    target: Vocabulary
    drafter: Vocabulary
    ids: Mapping[int, int]
    """By the target's id, lowest first, the drafter's id of the same token."""

    def spelled(self, size: int) -> list[Sequence[int]]:
        """For each of the target's `size` ids the drafter's tokens that spell it: one where they
        share it, none where its text is unknown."""
        pieces = {text: token for token, text in self.drafter.texts.items()}
        longest = max(map(len, pieces), default=0)
        names = {token: name.encode() for token, name in self.target.special.items()}
        texts = {**self.target.texts, **names}
        return [
            [self.ids[token]]
            if token in self.ids
            else _spell(texts.get(token, b""), pieces, longest)
            for token in range(size)
        ]


def shared_tokens(target: Path, drafter: Path) -> SharedTokens | None:
    """What two checkpoints share; None: the same ids are the same tokens. Raises ValueError where
    a tokenizer cannot be read, or too few tokens are shared."""
    size = architecture(target).vocab_size
    if has_same_ids(target, drafter):
        return None
    wanted = read_vocabulary(target, size)
    given = read_vocabulary(drafter, architecture(drafter).vocab_size)
    ids = _same(wanted.texts, given.texts) | _same(wanted.special, given.special)
    if len(ids) < LEAST_SHARED * size:
        raise ValueError(
            f"{drafter} shares {len(ids):,} of the target's {size:,} tokens, and less than "
            f"{LEAST_SHARED:.0%} are no use; choose a drafter with a tokenizer more like the "
            "target's"
        )
    return SharedTokens(wanted, given, dict(sorted(ids.items())))


def has_same_ids(one: Path, other: Path) -> bool:
    """Whether both checkpoints give each token the same id. Without any tokenizer in one of them
    the sizes decide alone."""
    if architecture(one).vocab_size != architecture(other).vocab_size:
        return False
    if not (has_tokenizer(one) and has_tokenizer(other)):
        return True
    if tokenizer_bytes(one) == tokenizer_bytes(other):
        return True
    if not all((folder / TOKENIZER).is_file() for folder in (one, other)):
        return False
    return _all_tokens(one) == _all_tokens(other)


@names_checkpoint
def _all_tokens(folder: Path) -> dict[int, str]:
    content = read_json(folder / TOKENIZER)
    return _pieces(content) | {added["id"]: added["content"] for added in content["added_tokens"]}


def _pieces(content: Mapping[str, Any]) -> dict[int, str]:
    listed = content["model"]["vocab"]
    if isinstance(listed, Mapping):
        return {token: piece for piece, token in listed.items()}
    return {token: piece for token, (piece, _score) in enumerate(listed)}


def _same(wanted: Mapping[int, Any], given: Mapping[int, Any]) -> dict[int, int]:
    """Where several ids have the same text the last one counts: bytes stand before whole pieces."""
    own = {text: token for token, text in given.items()}
    theirs = {text: token for token, text in wanted.items()}
    return {theirs[text]: own[text] for text in theirs.keys() & own.keys()}


@names_checkpoint
def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """The tokens below `size` of a checkpoint's tokenizer.json."""
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"{folder} has no {TOKENIZER}, by which tokens are compared; {SAVE_IT}")
    content = read_json(folder / TOKENIZER)
    to_bytes, added = _reader(content["decoder"]), content["added_tokens"]
    special = {one["id"]: one["content"] for one in added if one["special"]}
    texts = {token: to_bytes(piece) for token, piece in sorted(_pieces(content).items())}
    texts |= {one["id"]: one["content"].encode() for one in added if not one["special"]}
    return Vocabulary(
        {t: text for t, text in texts.items() if text and t < size and t not in special},
        {t: name for t, name in special.items() if t < size},
    )


def _reader(decoder: Mapping[str, Any]) -> Callable[[str], bytes]:
    """What a piece stands for, by how the tokenizer makes text of its tokens; empty: no text."""
    steps = decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return lambda piece: (
            bytes(map(_BYTES.__getitem__, piece)) if _BYTES.keys() >= {*piece} else b""
        )
    spaced = any(_SPACE in (step.get("replacement"), _replaced(step)) for step in steps)
    if not spaced:
        raise ValueError(
            f"tokenizer.json: decoder: {', '.join(sorted(kinds))} is neither byte-level nor "
            "SentencePiece's; choose a drafter with the target's tokenizer"
        )
    in_bytes = "ByteFallback" in kinds

    def read(piece: str) -> bytes:
        byte = _BYTE.fullmatch(piece) if in_bytes else None
        return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()

    return read


def _replaced(step: Mapping[str, Any]) -> object:
    pattern = step.get("pattern")
    return pattern.get("String") if isinstance(pattern, Mapping) else None


def _spell(text: bytes, pieces: Mapping[bytes, int], longest: int) -> list[int]:
    """The longest piece first, again and again; bytes that no piece begins with are left out."""
    spelled, at = [], 0
    while at < len(text):
        most = min(longest, len(text) - at)
        length = next((n for n in range(most, 0, -1) if text[at : at + n] in pieces), 0)
        if length:
            spelled.append(pieces[text[at : at + length]])
        at += max(length, 1)
    return spelled

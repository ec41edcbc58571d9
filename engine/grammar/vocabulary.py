"""The texts of a checkpoint's tokens, as xgrammar needs them.

They are kept in files: taking them from the tokenizer again holds the interpreter's lock for tenths
of a second of a core at once, in which an event loop in the same process stands still.
"""

import logging
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import xgrammar

from cluster.cache import cache_dir, written_whole
from engine.grammar.compile_call import Vocabulary
from engine.tokenizer import load_tokenizer

_LOG = logging.getLogger("spindle")
_FORMAT = b"1"
_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges*")
"""What a tokenizer is read from."""
_UNREADABLE = (OSError, EOFError, KeyError, ValueError, BadZipFile)


def token_texts(checkpoint: Path, vocab_size: int) -> Vocabulary:
    """`vocab_size`: the model's, which may be larger than the tokenizer's."""
    file = _file(checkpoint, vocab_size)
    texts = _read(file, vocab_size)
    if texts is None:
        texts = _of_tokenizer(checkpoint, vocab_size)
        _write(file, texts)
    return texts


def _of_tokenizer(checkpoint: Path, vocab_size: int) -> Vocabulary:
    tokenizer = load_tokenizer(checkpoint)
    # Stop tokens are those of the request, which its matcher sees to; xgrammar is given any.
    detected = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=[0]
    )
    # Special tokens are left out of the text that clients receive. xgrammar would take them for
    # the text of their names, and allow them within strings; an empty text is never allowed.
    added = tokenizer.added_tokens_decoder.items()
    special = {*tokenizer.all_special_ids, *(token for token, one in added if one.special)}
    texts = [b"" if token in special else text for token, text in enumerate(detected.decoded_vocab)]
    return Vocabulary(texts, detected.add_prefix_space, vocab_size)


def _file(checkpoint: Path, vocab_size: int) -> Path:
    """Named by all that its content depends on."""
    key = sha256(_FORMAT)
    key.update(f"{vocab_size} {version('xgrammar')} {version('transformers')}".encode())
    for pattern in _FILES:
        for path in sorted(checkpoint.glob(pattern)):
            key.update(path.name.encode() + sha256(path.read_bytes()).digest())
    return cache_dir() / "vocabularies" / f"{key.hexdigest()[:32]}.npz"


def _read(file: Path, vocab_size: int) -> Vocabulary | None:
    """None where there is no such file, or none that can be read."""
    with suppress(*_UNREADABLE), np.load(file) as kept:
        joined, ends = kept["joined"].tobytes(), kept["ends"].tolist()
        texts = [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return Vocabulary(texts, bool(kept["add_prefix_space"]), vocab_size)
    return None


def _write(file: Path, texts: Vocabulary) -> None:
    joined = np.frombuffer(b"".join(texts.of_tokens), np.uint8)
    ends = np.cumsum([len(text) for text in texts.of_tokens], dtype=np.int64)
    try:
        with written_whole(file) as partial:
            np.savez(partial, joined=joined, ends=ends, add_prefix_space=texts.add_prefix_space)
    except OSError as error:
        _LOG.warning("the texts of the vocabulary cannot be kept in %s: %s", file, error)

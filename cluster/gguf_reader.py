"""Opens a GGUF file that may be broken or hostile: what it claims is checked before it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import DTypeLike, NDArray

from cluster.checkpoint_files import first_line

_MOST_PARTS = 1 << 22
"""The most numbers and strings in a file's head. A vocabulary of 256,000 tokens takes 1.8 million;
each takes some 200 bytes of memory, however few it takes in the file."""


class UnsupportedGguf(ValueError):
    """The file is broken, or its architecture or tokenizer is not supported."""


class _Reader(GGUFReader):
    """Reads no further than the file goes. The library's reader believes all counts and lengths
    that the file claims, and reads empty arrays after its end."""

    _parts = 0

    def _get(
        self, offset: int, dtype: DTypeLike, count: int = 1, override_order: Any = None
    ) -> NDArray[Any]:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise ValueError(f"its head has more than {_MOST_PARTS} parts")
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError(f"it ends before what it claims to have at byte {offset}")
        return super()._get(offset, dtype, count, override_order)


def open_gguf(file: Path) -> GGUFReader:
    """Raises UnsupportedGguf."""
    try:
        reader = _Reader(file)
    except (ValueError, LookupError, ArithmeticError, TypeError, RecursionError) as error:
        raise UnsupportedGguf(f"{file} is no GGUF file: {error}; fetch it again") from error
    if sum(tensor.n_bytes for tensor in reader.tensors) > len(reader.data):
        raise UnsupportedGguf(f"{file}: its tensors share their bytes; fetch it again")
    return reader


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Raises UnsupportedGguf, which names the file, for whatever its contents raise."""
    try:
        yield
    except (UnsupportedGguf, OSError, MemoryError):
        raise
    except Exception as error:  # a field may have any type and any value
        raise UnsupportedGguf(
            f"{file} cannot be read ({type(error).__name__}: {first_line(error)}); fetch it again"
        ) from error

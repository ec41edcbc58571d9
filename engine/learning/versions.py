"""The versions of a learning head on disk: its learned weights as safetensors, with counts of what
they have seen. Whatever is wrong with the disk is logged, and learning goes on in memory."""

import json
import logging
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cluster.cache import written_whole

_LOG = logging.getLogger("spindle")
_CANDIDATE = "candidate.safetensors"
_SERVING = "serving.json"
_DIGEST = "digest"


class Version(NamedTuple):
    weights: dict[str, Tensor]
    counts: dict[str, int]
    """`version` and `tokens`: its number, and the answers' tokens that it has learned from."""


def packed(version: Version) -> bytes:
    counts = {name: str(count) for name, count in version.counts.items()}
    weights = {name: weight.contiguous() for name, weight in version.weights.items()}
    return save(weights, {**counts, _DIGEST: _digest(weights)})


def unpacked(content: bytes) -> Version:
    """Raises ValueError for what is not whole."""
    try:
        weights: dict[str, Tensor] = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        stored: dict[str, str] = header["__metadata__"]
        if stored.pop(_DIGEST) != _digest(weights):
            raise ValueError("its content is another than was written")
        return Version(weights, {name: int(count) for name, count in stored.items()})
    except (SafetensorError, KeyError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not whole ({error!r})") from error


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class VersionFolder:
    def __init__(self, path: Path, most: int) -> None:
        """`most`: versions that are kept, the newest and the one that is served."""
        self._path, self._most = path, most

    def add(self, version: Version) -> None:
        number = version.counts["version"]
        self._write(self._file(number), packed(version))
        kept = {self._serving(), *self._numbers()[-self._most :]}
        for old in self._numbers():
            if old not in kept:
                self._remove(self._file(old))

    def serve(self, number: int) -> None:
        """Notes which version all lanes serve, for the next start."""
        self._write(self._path / _SERVING, json.dumps({"version": number}).encode())

    def save_candidate(self, version: Version) -> None:
        self._write(self._path / _CANDIDATE, packed(version))

    def candidate(self) -> Version | None:
        return self._read(self._path / _CANDIDATE)

    def served(self) -> Version | None:
        """The version that was served last, or the newest before it that is whole."""
        last = self._serving()
        for number in reversed(self._numbers()):
            if number <= last and (version := self._read(self._file(number))) is not None:
                return version
        return None

    @property
    def newest(self) -> int:
        return max(self._numbers(), default=0)

    def _file(self, number: int) -> Path:
        return self._path / f"{number:06}.safetensors"

    def _numbers(self) -> list[int]:
        files = self._path.glob("[0-9]*.safetensors") if self._path.is_dir() else []
        return sorted(int(file.stem) for file in files if file.stem.isdecimal())

    def _serving(self) -> int:
        try:
            return int(json.loads((self._path / _SERVING).read_text())["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write(self, file: Path, content: bytes) -> None:
        try:
            with written_whole(file) as partial:
                partial.write_bytes(content)
        except OSError as error:
            _LOG.error("%s cannot be written: %s", file, error)

    def _remove(self, file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            _LOG.error("%s cannot be removed: %s", file, error)

    def _read(self, file: Path) -> Version | None:
        try:
            return unpacked(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _LOG.error("%s cannot be read: %s", file, error)
            return None

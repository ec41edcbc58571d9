"""Past outputs on disk, over restarts: one file, which the router alone writes, for its own user.

By default there is none. It holds answers as token ids, names of tenants and digests of salts, and
nothing of API keys.
"""

import asyncio
import json
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from actors.router.shared_outputs import Output, SharedOutputs
from cluster.cache import written_whole
from engine.scopes import Scope

WRITE_S = 10.0
"""The least time between two writes; a killed router loses what came since the last one."""
_SHARE = 0.05
"""The largest share of the time that is spent on writing."""
_LOG = logging.getLogger("spindle")


class OutputsFile:
    def __init__(self, path: Path, max_tokens: int) -> None:
        self._path = path
        self._most_bytes = 64 * max_tokens + 4096

    def read(self) -> list[Output]:
        """Empty after any defect, which is logged."""
        try:
            for partial in self._path.parent.glob(f".{self._path.stem}-*"):
                partial.unlink()  # of a router that was killed while it wrote
            if not self._path.exists():
                return []
            if self._path.stat().st_size > self._most_bytes:
                raise ValueError("it is larger than past_tokens allows")
            return _decoded(self._path.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            _LOG.warning("past outputs in %s are left out: %s", self._path, error)
            return []

    async def keep(self, shared: SharedOutputs, every_s: float = WRITE_S) -> None:
        """Writes whatever changes, forever."""
        written, fails, took_s = shared.changes, False, 0.0
        while True:
            await asyncio.sleep(max(every_s, took_s / _SHARE))
            if shared.changes == written:
                continue
            changes, outputs = shared.changes, shared.all()
            began_s = time.monotonic()
            try:
                await asyncio.to_thread(self.write, outputs)
                written, fails = changes, False
            except OSError as error:
                if not fails:
                    _LOG.warning("past outputs are not kept in %s: %s", self._path, error)
                fails = True
            took_s = time.monotonic() - began_s

    def write(self, outputs: Sequence[Output]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_whole(self._path) as partial:  # which only its user may read
            partial.write_bytes(_encoded(outputs))


def _encoded(outputs: Sequence[Output]) -> bytes:
    rows = [
        (output.replica, output.number, *output.scope, b64encode(output.tokens).decode())
        for output in outputs
    ]
    body = json.dumps(rows).encode()
    return _digest(body) + body


def _decoded(data: bytes) -> list[Output]:
    """Raises ValueError or TypeError."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(body):
        raise ValueError("it is not as it was written")
    return [
        Output(replica, number, Scope(tenant, salt), b64decode(tokens))
        for replica, number, tenant, salt, tokens in json.loads(body)
    ]


_DIGEST_BYTES = 20


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()

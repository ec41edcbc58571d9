"""What the process of a drafter or verifier logs of its work, into a file of its own.

Ray shows what its workers print on the terminal that has started the application; so only warnings
go there as well.
"""

import logging
from collections.abc import Callable
from functools import partial
from logging.handlers import RotatingFileHandler
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

_LOG = logging.getLogger("spindle")
_OURS = ("actors", "cluster", "engine", "policies", "spindle")
_FORMAT = "%(levelname)s %(asctime)s %(name)s:%(lineno)d - %(message)s"
_FILE_BYTES = 10 * 2**20
_OLD_FILES = 2
PERIOD_S = 30.0
"""At most this often, the calls since the last time are logged together."""
_BATCHES = ("draft", "verify")
"""Methods whose first argument is a batch of orders; some hundred calls a second."""
_UNLOGGED = ("kv_state",)


def log_to_file(path: Path) -> None:
    """Called once in the process, before its first call. Two older files of 10 MiB are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES)
    file.setFormatter(logging.Formatter(_FORMAT))
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers = [file, terminal]
        logger.propagate = False
        logger.setLevel(logging.INFO)


class LoggedWorker:
    """Has the methods of a worker. Rare calls are logged one by one; those for batches of orders
    together, when requests leave."""

    def __init__(self, worker: object) -> None:
        self._worker = worker
        self._calls = 0
        self._orders = 0
        self._seconds = 0.0
        self._left = 0
        self._logged_s = -inf

    def __getattr__(self, method: str) -> Callable[..., object]:
        return partial(self._call, method, getattr(self._worker, method))

    def _call(self, method: str, work: Callable[..., object], *arguments: Any) -> object:
        begun = monotonic()
        try:
            answer = work(*arguments)
        except Exception as error:
            _LOG.warning("%s raises %r after %.2f s", method, error, monotonic() - begun)
            raise
        now = monotonic()
        if method in _BATCHES:
            self._calls += 1
            self._orders += len(arguments[0])
            self._seconds += now - begun
        elif method == "forget":
            self._left += len(arguments[0])
            if self._left and now - self._logged_s >= PERIOD_S:
                self._log_batches(now)
        elif method not in _UNLOGGED:
            _LOG.info("%s took %.2f s", method, now - begun)
        return answer

    def _log_batches(self, now: float) -> None:
        _LOG.info(
            "%d requests left; %d orders in %d calls, which took %.2f s",
            self._left,
            self._orders,
            self._calls,
            self._seconds,
        )
        self._calls = self._orders = self._left = 0
        self._seconds, self._logged_s = 0.0, now

"""What the process of a drafter or verifier logs of its work, into a file of its own.

Ray shows what its workers print on the terminal that has started the application; so only warnings
go there as well.
"""

import logging
from collections.abc import Callable
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from time import monotonic

_LOG = logging.getLogger("spindle")
_OURS = ("actors", "cluster", "engine", "policies", "spindle")
_FORMAT = "%(levelname)s %(asctime)s %(name)s:%(lineno)d - %(message)s"
_FILE_BYTES = 10 * 2**20
_OLD_FILES = 2
_FREQUENT = ("draft", "verify", "forget", "kv_state")
"""Methods whose calls are logged only where they raise."""


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
    """Has the methods of a worker, whose rare calls are logged, and errors of all."""

    def __init__(self, worker: object) -> None:
        self._worker = worker

    def __getattr__(self, method: str) -> Callable[..., object]:
        return partial(self._call, method, getattr(self._worker, method))

    def _call(self, method: str, work: Callable[..., object], *arguments: object) -> object:
        begun = monotonic()
        try:
            answer = work(*arguments)
        except Exception as error:
            _LOG.warning("%s raises %r after %.2f s", method, error, monotonic() - begun)
            raise
        if method not in _FREQUENT:
            _LOG.info("%s took %.2f s", method, monotonic() - begun)
        return answer

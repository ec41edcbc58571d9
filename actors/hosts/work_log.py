"""What the process of a drafter or verifier logs of its work, into a file of its own.

Ray shows what its workers print on the terminal that has started the application; so only warnings
go there as well.
"""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

_OURS = ("actors", "cluster", "engine", "policies", "spindle")
_FORMAT = "%(levelname)s %(asctime)s %(name)s:%(lineno)d - %(message)s"
_FILE_BYTES = 10 * 2**20
_OLD_FILES = 2


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

"""Writes what Spindle's modules log into Serve's log file of the process.

Serve's files, one for each replica, have only what is logged below the logger `ray.serve`.
"""

import logging

_SERVE = "ray.serve"
_OURS = ("actors", "cluster", "deployments", "engine", "policies", "spindle")


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(_SERVE).handle(record)


def forward_to_serve() -> None:
    """Called once in each process of ingress and replicas."""
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers = [_Forward()]
        logger.propagate = False
        logger.setLevel(logging.INFO)

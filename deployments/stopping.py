"""How the application stops without cutting answers off.

`serve run` ends Serve, its proxies first, as soon as it gets SIGINT, and all of Ray at SIGTERM.
`in_serve_run`, which cluster/serve.env has Ray call in that process, has it wait: new requests are
refused, those under way end, at the latest after `scaling.drain_s`. A second signal ends it at
once.

`python -m deployments.stopping` does the same to the application of the cluster that it runs in,
and returns when that may be stopped: for the stop hooks of containers.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import serve

from deployments.ray_internals import keep_signal_handlers

_PARTS = {"Ingress", "Replica"}
"""The deployments of an application of ours."""


def drain() -> None:
    """Has each application of ours refuse requests, and returns when none is under way."""
    applications = serve.status().applications
    ours = [name for name, one in applications.items() if one.deployments.keys() >= _PARTS]
    draining = [serve.get_app_handle(name).drain.remote() for name in ours]
    for one in draining:
        one.result()


def in_serve_run(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Called by Ray when `ray.init` begins."""
    if Path(sys.argv[0]).name == "serve" and "run" in sys.argv:
        del os.environ["RAY_RUNTIME_ENV_HOOK"]  # what it starts has ends of its own
        stop = _Stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        keep_signal_handlers()
    return runtime_env


class _Stop:
    """A handler of signals."""

    def __init__(self) -> None:
        self._draining: threading.Thread | None = None

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self._draining is not None or not ray.is_initialized():
            raise KeyboardInterrupt  # at which `serve run` ends Serve and Ray
        print("Spindle: answers under way end first; once more to stop at once", file=sys.stderr)
        self._draining = threading.Thread(target=self._drain, daemon=True)
        self._draining.start()

    def _drain(self) -> None:
        try:
            drain()
        except Exception as error:  # Serve or Ray is not there any more, or not yet
            print(f"Spindle: answers are cut off: {error}", file=sys.stderr)
        # A signal to this very thread, as the main one sleeps.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


if __name__ == "__main__":
    ray.init(address="auto", namespace="serve", log_to_driver=False)
    drain()

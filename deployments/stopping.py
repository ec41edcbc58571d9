"""How the application stops without cutting answers off.

`serve run` ends Serve, its proxies first, as soon as it gets SIGINT, and all of Ray at SIGTERM.
`in_serve_run`, which cluster/serve.env has Ray call in that process, has it wait: new requests are
refused, those under way end, at the latest after `scaling.drain_s`. A second signal ends it at
once.

`python -m deployments.stopping` does the same to the application of the cluster that it runs in,
and returns when that may be stopped: for the stop hooks of containers.
"""

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

_PARTS = {"Ingress", "Replica"}
"""The deployments of an application of ours."""
_POLL_S = 1.0
_ERROR = re.compile(r"^[\w.]+(Error|Exception)\b", re.MULTILINE)
_PYDANTICS_LINK = "For further information visit"
_NOT_SERVING = {"STARTING", "STOPPING", "STOPPED"}
"""States of Serve's replicas."""


def drain() -> None:
    """Has each application of ours refuse requests, and returns when none is under way. One whose
    ingress does not serve yet has none; a call would wait until it does."""
    ours = [
        name
        for name, one in serve.status().applications.items()
        if one.deployments.keys() >= _PARTS
        and not one.deployments["Ingress"].replica_states.keys() <= _NOT_SERVING
    ]
    asyncio.run(_drain(ours))


async def _drain(applications: Sequence[str]) -> None:
    """On a loop, as handles run on their caller's with cluster/serve.env. Those that Serve makes
    itself it would shut down later, when the loop is closed."""
    handles = [DeploymentHandle("Ingress", name) for name in applications]
    draining = [one.drain.remote() for one in handles]
    ends = await asyncio.gather(*draining, return_exceptions=True)
    for error in ends:
        if isinstance(error, BaseException):
            raise error


def in_serve_run(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """Called by Ray when `ray.init` begins."""
    if Path(sys.argv[0]).name == "serve" and "run" in sys.argv:
        del os.environ["RAY_RUNTIME_ENV_HOOK"]  # what it starts has ends of its own
        stop = _Stop()
        signal.signal(signal.SIGINT, stop)
        # Ray sets its own for SIGTERM, which print a stack; and only the main thread may set one.
        signal.signal(signal.SIGUSR1, lambda *_: signal.signal(signal.SIGTERM, stop))
        signal.signal(signal.SIGUSR2, lambda *_: os._exit(1))  # by deployments/watchdog.py
        threading.Thread(target=_after_init, daemon=True).start()
    return runtime_env


def _after_init() -> None:
    while not ray.is_initialized():
        time.sleep(0.1)
    _to_main_thread(signal.SIGUSR1)
    with suppress(Exception):  # Serve or Ray is not there any more
        refusal = _refusal()
        if refusal:
            print(f"Spindle: `serve run` ends, Serve refuses this: {refusal}", file=sys.stderr)
            serve.shutdown()
            ray.shutdown()
            os._exit(1)


def _refusal() -> str:
    """Why Serve has given up every application before one has run; empty as soon as one runs, or
    if Ray ends."""
    while ray.is_initialized():
        found = list(serve.status().applications.values())
        if any(one.status == "RUNNING" for one in found):
            break
        if found and all(one.status == "DEPLOY_FAILED" for one in found):
            deployments = found[0].deployments.values()
            failed = [one.message for one in deployments if one.status == "DEPLOY_FAILED"]
            return _last_error([found[0].message, *failed][-1])
        time.sleep(_POLL_S)
    return ""


def _last_error(message: str) -> str:
    """The last line that begins with an exception's name, and those after it, as one."""
    begins = [match.start() for match in _ERROR.finditer(message)]
    last = message[begins[-1] if begins else 0 :].partition(_PYDANTICS_LINK)[0]
    return " ".join(last.split())


def _to_main_thread(number: signal.Signals) -> None:
    """Wakes the main thread, which sleeps until a signal is sent to it alone."""
    signal.pthread_kill(threading.main_thread().ident or 0, number)


class _Stop:
    """A handler of signals."""

    def __init__(self) -> None:
        self._draining: threading.Thread | None = None
        self._ending = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self._draining is not None or not ray.is_initialized():
            self._ending = True
            raise KeyboardInterrupt  # at which `serve run` ends Serve and Ray
        print("Spindle: answers under way end first; once more to stop at once", file=sys.stderr)
        self._draining = threading.Thread(target=self._drain, daemon=True)
        self._draining.start()

    def _drain(self) -> None:
        try:
            drain()
        except (Exception, asyncio.CancelledError) as error:  # Serve or Ray is not there
            print(f"Spindle: answers are cut off: {error!r}", file=sys.stderr)
        if not self._ending:  # else it would interrupt that
            _to_main_thread(signal.SIGINT)


if __name__ == "__main__":
    ray.init(address="auto", namespace="serve", log_to_driver=False)
    drain()

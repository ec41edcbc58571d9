"""Kills a process while streams are under way."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.serving.streams import ReceivedStream


@dataclass(slots=True)
class Kill:
    """The progress callback of `read_all`: kills once streams have so many tokens on average."""

    pid: int
    after_tokens: int = 8
    unfinished: int | None = None
    """Streams that were under way then; None: it has not struck."""

    def __call__(self, received: Sequence[ReceivedStream]) -> None:
        tokens = sum(len(one.token_ids) for one in received)
        if self.unfinished is None and tokens > self.after_tokens * len(received):
            self.unfinished = sum(not one.complete for one in received)
            os.kill(self.pid, signal.SIGKILL)

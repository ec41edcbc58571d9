"""Measures what threads that spin gain on free processors, and what they cost on shared ones.

`python -m lab.micro.threads [--model DIR] [--seconds 6] [--json FILE]`.

Forwards of 1, 4 and 16 requests with one new token each, in float32, on all threads of a process
that sleep or spin between parallel regions, on those that have a processor (as Spindle's processes
run), or on one; beside so many processes that keep a processor busy each. Names:
threads/SETTING/BUSY busy/REQUESTS requests; values are means, the reference is `sleep`.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.processes import environment
from benchmarks.report import Record, parser, publish
from cluster.built_in_models import SMOLLM2
from cluster.cache import cache_dir
from engine.cpu.environment import openmp_environment

REQUESTS = (1, 4, 16)
PROMPT = 300
BUSY = (0, 1)
THREADS = len(os.sched_getaffinity(0))
SLEEP = {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}


class Setting(NamedTuple):
    variables: Mapping[str, str]
    threads: int
    adaptive: bool
    """Fewer threads while other processes want the processors."""


SETTINGS = {
    "sleep": Setting(SLEEP, THREADS, adaptive=False),
    "spin": Setting(openmp_environment(THREADS), THREADS, adaptive=False),
    "one": Setting(SLEEP, 1, adaptive=False),
    "served": Setting(openmp_environment(THREADS), THREADS, adaptive=True),
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", type=Path, default=cache_dir() / SMOLLM2)
    arguments.add_argument("--seconds", type=float, default=6.0, help="of each value (default 6)")
    options = arguments.parse_args()
    records = []
    for busy in BUSY:
        times = {
            name: _measured(setting, options.model, options.seconds, busy)
            for name, setting in SETTINGS.items()
        }
        records += [
            Record.over(
                times["sleep"][requests],
                f"threads/{name}/{busy} busy/{requests} requests",
                times[name][requests],
                "s",
            )
            for name in SETTINGS
            for requests in REQUESTS
        ]
    publish(records, options.json)


def _measured(setting: Setting, model: Path, seconds: float, busy: int) -> dict[int, float]:
    """Seconds of a forward, by its number of requests."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with environment(setting.variables):
        process = context.Process(target=_forwards, args=(setting, model, seconds, theirs))
        process.start()
    ours.recv()  # it is loaded
    with _busy_processes(busy):
        ours.send(None)
        times: dict[int, float] = ours.recv()
    process.join()
    return times


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    endless = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(endless) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _forwards(setting: Setting, checkpoint: Path, seconds: float, connection: Connection) -> None:
    import torch

    from engine.cpu.threads import set_threads
    from engine.model import PackedModel, Segment

    (set_threads if setting.adaptive else torch.set_num_threads)(setting.threads)
    model = PackedModel.load(
        checkpoint, dtype=torch.float32, device="cpu", kv_tokens=max(REQUESTS) * 4 * PROMPT
    )
    tokens, rows = np.arange(5, 5 + PROMPT, dtype=np.int32), np.arange(PROMPT, dtype=np.int32)
    requests = [str(number) for number in range(max(REQUESTS))]
    for request in requests:
        model.kv.open(request, [])
        model.forward([Segment(request, tokens, rows, None, rows[-1:])])
        model.kv.commit(request, range(PROMPT), tokens.tolist())

    def forward(count: int) -> None:
        """The new rows are dropped, so that all forwards have the same context."""
        new = [
            Segment(one, tokens[:1], rows[:1] + PROMPT, None, rows[:1]) for one in requests[:count]
        ]
        model.forward(new)
        for request in requests[:count]:
            model.kv.commit(request, [], [])

    for count in REQUESTS:  # compiles
        forward(count)
    connection.send(None)
    connection.recv()
    connection.send({count: _mean_s(forward, count, seconds) for count in REQUESTS})


def _mean_s(forward: Callable[[int], None], count: int, seconds: float) -> float:
    """The first half of the time counts for nothing: the number of threads settles in it."""
    started = time.perf_counter()
    while time.perf_counter() < started + seconds / 2:
        forward(count)
    started, forwards = time.perf_counter(), 0
    while time.perf_counter() < started + seconds / 2:
        forward(count)
        forwards += 1
    return (time.perf_counter() - started) / forwards


if __name__ == "__main__":
    main()

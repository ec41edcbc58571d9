"""What the playground's strip costs all processes of an application while a page has it open.

`python -m lab.studies.strip [--seconds 240] [--json FILE]`.

cluster/test.yaml under 4 clients. Turns without requests for the strip's numbers alternate with
turns that have TIMES as many as one page sends, over HTTP. Compared is the CPU time of all actors
(proxy, ingress, replica, drafters, verifier) per output token; a page's share is the difference,
divided by TIMES. The browser is left out. Exits with status 1 where the share is above 1%.
"""

import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.processes import end_after_ray
from benchmarks.report import Record, paired_ratio, parser, publish
from benchmarks.serving.app import running, small_args
from lab.pictures.load import Load

TIMES = 10
BOUND = 0.01
_PORT = 8151
_CLIENTS = 4
_WARM_UP_S = 20.0
_TURN_S = 5.0
_FEWEST = 20
"""Pairs of turns for an interval."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=240.0)
    options = arguments.parse_args()
    with running(small_args(), _PORT) as app, Load(app.url, _CLIENTS):
        processes = [psutil.Process(actor.pid) for actor in app.actors()]
        time.sleep(_WARM_UP_S)
        with_pages: list[float] = []
        without: list[float] = []
        end = time.monotonic() + options.seconds
        while time.monotonic() < end or len(with_pages) < _FEWEST:
            turns = [(True, with_pages), (False, without)]
            for polls, costs in turns if len(with_pages) % 2 else reversed(turns):
                costs.append(cpu_s_per_token(app.url, processes, polls))
    ratio = paired_ratio(with_pages, without)
    print(f"CPU time per token with {TIMES} pages, {len(with_pages)} pairs: {ratio}")
    shares = [(one - 1) / TIMES for one in (ratio.median, ratio.low, ratio.high)]
    names = ("strip/page", "strip/page/low", "strip/page/high")
    publish(
        [Record(name, 100 * share, "%") for name, share in zip(names, shares, strict=True)],
        options.json,
    )
    end_after_ray(shares[0] > BOUND)


def cpu_s_per_token(url: str, processes: Sequence[psutil.Process], polls: bool) -> float:
    """In one turn."""
    with polling(f"{url}/spindle/live?seconds=8", polls):
        before, used_s = committed(url), cpu_s(processes)
        time.sleep(_TURN_S)
        now, used_s = committed(url), cpu_s(processes) - used_s
    return used_s / (now - before)


@contextmanager
def polling(url: str, polls: bool) -> Iterator[None]:
    """As TIMES pages do, while the block runs, if `polls`."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(1 / TIMES):
            urllib.request.urlopen(url, timeout=30).read()

    thread = threading.Thread(target=poll)
    if polls:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if polls:
            thread.join()


def committed(url: str) -> float:
    """Output tokens of all replicas so far."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    families = text_string_to_metric_families(text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "spindle_committed_tokens_total"
    )


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


if __name__ == "__main__":
    main()

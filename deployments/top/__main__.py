"""`python -m deployments.top [URL]`: the metrics of a running application, live in a terminal.

URL is the application's `/metrics`, or a node's metrics port of Ray. An API key is read from the
environment variable SPINDLE_API_KEY. `--once` prints one screen and ends.
"""

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from deployments.top.scrapes import Change, Scrape, fetch, parse
from deployments.top.screen import QUIT, View, draw
from deployments.top.tables import drafters, hosts, summary

_URL = "http://127.0.0.1:8000/metrics"
_WINDOW = 5
"""Rates are over so many scrapes."""
_KEY = "SPINDLE_API_KEY"
_MOST_KEYS = 64


class Top:
    def __init__(self, url: str, every_s: float) -> None:
        self.view = View()
        self._url = url
        self._every_s = every_s
        self._scrapes: deque[Scrape] = deque(maxlen=_WINDOW + 1)
        self._problem = ""

    def scrape(self) -> None:
        """A failure is shown, and the next scrape tries again."""
        try:
            scraped = parse(fetch(self._url, os.environ.get(_KEY)), time.monotonic())
        except (OSError, ValueError) as error:
            self._problem = f"{self._url}: {error}"
            return
        self._problem = ""
        if not scraped.values:
            self._problem = f"{self._url} has no metrics of Spindle"
        self._scrapes.append(scraped)

    @property
    def ready(self) -> bool:
        """Whether there are two scrapes to compare."""
        return len(self._scrapes) > 1

    def screen(self, width: int) -> RenderableType:
        if not self.ready:
            return Text(self._problem or f"waiting for {self._url} ...")
        change = Change(self._scrapes[0], self._scrapes[-1])
        span = f"{self._scrapes[-1].at_s - self._scrapes[0].at_s:.0f} s"
        state = self._problem or ("FROZEN" if self.view.frozen else f"over {span} of {self._url}")
        return draw(summary(change), [drafters(change), hosts(change)], self.view, state, width)

    def run(self, console: Console) -> None:
        """Until a key ends it."""
        with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            next_s = time.monotonic()
            while not self.view.quits:
                if time.monotonic() >= next_s:
                    if not self.view.frozen:
                        self.scrape()
                    next_s = time.monotonic() + self._every_s
                live.update(self.screen(console.width), refresh=True)
                for key in _pressed(max(0.0, next_s - time.monotonic())):
                    self.view.press(key)


def _pressed(seconds: float) -> str:
    """The keys pressed within this time; returns as soon as there are any."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return ""
    # Without input the terminal is gone.
    return os.read(sys.stdin.fileno(), _MOST_KEYS).decode(errors="ignore") or QUIT


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive without Enter; the terminal is as before afterwards."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deployments.top", description=__doc__)
    parser.add_argument("url", nargs="?", default=_URL, metavar="URL")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    if options.every <= 0:
        parser.error("--every: must be above 0")
    if not options.url.startswith(("http://", "https://")):
        parser.error(f"URL: {options.url!r} does not begin with http:// or https://")
    console, top = Console(), Top(options.url, options.every)
    if options.once:
        top.scrape()
        time.sleep(options.every)
        top.scrape()
        console.print(top.screen(console.width))
        sys.exit(not top.ready)
    if not sys.stdin.isatty():
        parser.error("there is no terminal to read keys from; --once needs none")
    top.run(console)


if __name__ == "__main__":
    main()

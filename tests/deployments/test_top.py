"""The screen of `python -m deployments.top`, read from a terminal, on what a replica exports."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from actors.coordinator.events import Drafted, LaneDown, Verified, VerifiedTrees
from deployments.ingress.metrics import IngressMetrics
from deployments.ingress.pages.metrics_text import prometheus_text
from deployments.replica.metrics import Metrics
from deployments.top.scrapes import Change, parse
from deployments.top.tables import milliseconds
from policies.flat_trees import flatten
from policies.request import RoundOutcome
from policies.tree import DraftTree
from tests.deployments.http_server import http_server

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 60, 24
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
CHAIN = flatten([DraftTree.chain([1, 2], [0.5, 0.5])])


class Exporter:
    """A replica with two drafters: of each `round`, both tokens of `good`'s draft are accepted, and
    none of `bad`'s. A plain round takes twice what the cost model expects."""

    def __init__(self) -> None:
        drafters = {"good": "good", "bad": "bad"}
        self._metrics, self._ingress = Metrics("one", drafters, {}), IngressMetrics()

    def round(self) -> None:
        for lane, accepted in (("good", (0, 1)), ("bad", ())):
            committed = 1 + len(accepted)
            outcome = RoundOutcome(
                "request", lane, 2, 2, len(accepted), committed, 0.02, 0.01, 0.005
            )
            drafts = VerifiedTrees(CHAIN, None, [[lane]], [accepted])
            self._metrics.observe(Drafted(0.0, lane, 0.005, 1, 2, CHAIN))
            self._metrics.observe(
                Verified(1.0, 0.01, 0.01, 9, 3, 0, (outcome,), drafts=drafts, plain_s=0.01)
            )

        plain = RoundOutcome("request", None, 0, 0, 0, 1, 0.02, 0.02, 0.0)
        self._metrics.observe(Verified(1.0, 0.02, 0.01, 1, 1, 0, (plain,), plain_s=0.01))

    def lose(self, lane: str) -> None:
        self._metrics.observe(LaneDown(0.0, lane, "killed"))

    def text(self) -> bytes:
        return prometheus_text([*self._ingress.families(), *self._metrics.families()])


@contextmanager
def served(exporter: Exporter, key: str = "") -> Iterator[str]:
    """Its URL. Between two scrapes there is one round."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = not key or self.headers["Authorization"] == f"Bearer {key}"
            exporter.round()
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(exporter.text() if allowed else b"")

        def log_message(self, *_: object) -> None: ...

    with http_server(Handler) as url:
        yield f"{url}/metrics"


class Terminal:
    """The program in a terminal of WIDTH columns."""

    def __init__(self, url: str) -> None:
        self._own, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        command = [sys.executable, "-m", "deployments.top", url, "--every", "0.1"]
        # COLUMNS, which other tests set, would be believed before the terminal.
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=terminal, stdout=terminal, env={**environment, "TERM": "xterm"}
        )
        os.close(terminal)
        self._received = ""

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def until(self, *words: str, within_s: float = 30.0) -> list[str]:
        """The lines of the first screen from now on that has all of these words."""
        self._received = ""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if select.select([self._own], [], [], 0.1)[0]:
                self._received += os.read(self._own, 65536).decode(errors="ignore")
            *screens, _ = self._received.split("\x1b[H")
            for screen in screens:
                text = ESCAPE.sub("", screen)
                if all(word in text for word in words):
                    return [line.rstrip() for line in text.splitlines()]
        raise AssertionError(f"no screen with {words}: {ESCAPE.sub('', self._received)[-2000:]}")


def first_words(lines: list[str], *words: str) -> list[str]:
    """These words, in the order of the lines that begin with them."""
    return [line.split()[0] for line in lines if line.startswith(words)]


def test_the_screen_sorts_freezes_and_fits_a_narrow_window() -> None:
    exporter = Exporter()
    with served(exporter) as url:
        terminal = Terminal(url)
        lines = terminal.until("goodput", "accepted/s▼", "100%", "verifier")
        assert max(map(len, lines)) <= WIDTH
        assert first_words(lines, "good ", "bad ")[:2] == ["good", "bad"]
        [good] = [line for line in lines if line.startswith("good ") and "×" in line]
        assert good.split()[2:4] == ["100%", "1.50×"]
        # 5 tokens in 60 ms.
        assert "speed-up 0.83×  measured 1.67×" in " ".join(lines)

        terminal.press("r")
        lines = terminal.until("accepted/s▲")
        assert first_words(lines, "good ", "bad ")[:2] == ["bad", "good"]
        terminal.press("s")
        terminal.until("accept %▲")

        exporter.lose("bad")
        terminal.until("DOWN")
        terminal.press("f")
        frozen = terminal.until("FROZEN")
        time.sleep(0.5)
        terminal.press("t")
        unchanged = terminal.until("FROZEN", "busy▲")
        assert unchanged[0] == frozen[0]
        terminal.press("q")
        assert terminal.process.wait(10) == 0


def test_an_endpoint_that_does_not_answer_is_named_and_asked_again() -> None:
    with served(Exporter()) as url:
        port = url
    terminal = Terminal(port)
    terminal.until("refused")
    terminal.press("q")
    assert terminal.process.wait(10) == 0


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_once_prints_one_screen_with_the_key_of_the_environment(key: str) -> None:
    with served(Exporter(), key="right") as url:
        command = [sys.executable, "-m", "deployments.top", url, "--every", "0.1", "--once"]
        environment = {**os.environ, "SPINDLE_API_KEY": key, "COLUMNS": "200"}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    if key == "right":
        assert ended.returncode == 0, ended.stderr
        assert "calibration" in ended.stdout
    else:
        assert ended.returncode == 1
        assert "401" in ended.stdout


def test_a_process_that_was_restarted_counts_from_0_again() -> None:
    before = parse("ray_spindle_forwards_total 90.0\n", 0.0)
    assert (
        Change(before, parse("ray_spindle_forwards_total 30.0\n", 10.0)).rate("forwards_total") == 3
    )


def test_times_are_short_and_have_no_exponent() -> None:
    shown = [milliseconds(seconds) for seconds in (0.0004, 0.0437, 0.9994, 1.95, 60.0)]
    assert shown == ["0.4 ms", "43.7 ms", "999 ms", "1.95 s", "60 s"]


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    def scrape(at_s: float, *counts: int) -> str:
        bounds = ("0.1", "0.2", "+Inf")
        lines = [
            f'spindle_ttft_seconds_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(bounds, counts, strict=True)
        ]
        return "\n".join(["# TYPE spindle_ttft_seconds histogram", *lines, ""])

    change = Change(parse(scrape(0, 5, 5, 5), 0.0), parse(scrape(1, 15, 25, 25), 1.0))
    assert change.quantile("ttft_seconds", 0.75) == pytest.approx(0.15)
    assert change.quantile("tpot_seconds", 0.75) is None

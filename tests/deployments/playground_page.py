"""A visit of the playground in a real browser, whatever serves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Browser, Page, ViewportSize

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
TABLET: ViewportSize = {"width": 768, "height": 1024}
PHONE: ViewportSize = {"width": 360, "height": 740}


@dataclass
class Visit:
    """A page, and what its console and network have shown."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of the complaints that the test provokes."""
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda one: self._complain(one.type, one.text))
        self.page.on("pageerror", lambda error: self._complain("error", str(error)))
        self.page.on("request", lambda request: self.urls.append(request.url))

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


@contextmanager
def visiting(browser: Browser, url: str) -> Iterator[Visit]:
    """Fails where the console shows an error that the test does not expect."""
    context = browser.new_context(viewport=DESKTOP)
    seen = Visit(context.new_page())
    yield seen
    context.close()
    unexpected = [one for one in seen.complaints if not any(part in one for part in seen.expected)]
    assert unexpected == []
    assert all(one.startswith(url) for one in seen.urls), "nothing comes from other hosts"


def barriers(page: Page) -> list[str]:
    """What axe finds."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

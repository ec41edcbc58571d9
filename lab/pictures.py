"""Makes the pictures of the README and docs in docs/images/: `make screenshots`.

    python -m lab.pictures [--only playground zoo]

`playground` are pages of cluster.yaml's model. `zoo` are those that show several drafters,
under load. It drives an application that it starts as `make serve` does, or the one at `--url`,
in the machine's own Chromium.
"""

import argparse
import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, Page, ViewportSize

from benchmarks.browser import chromium
from benchmarks.processes import end_after_ray
from benchmarks.serving.app import running
from benchmarks.serving.requests import mixed_requests
from benchmarks.serving.streams import ReceivedStream, read, session
from cluster.built_in_models import TARGET

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
_PORT = 8147
_DESKTOP: ViewportSize = {"width": 1280, "height": 960}
_PHONE: ViewportSize = {"width": 390, "height": 844}
_ANSWER_MS = 180_000
_NEXT_NUMBERS_MS = 1200
"""Until the strip has drawn the end of the answer."""
_MOST_BYTES = 200_000
_STRIP_MS = 12_000
_SLO = {"ttft_ms": 1500, "tpot_ms": 60}
_CLIENTS = 4
_CODE = "Write a Python class of a shopping cart with add, remove and total."
# Another one: lookups find past answers, so the same would look too good.
_SONG = "Write a song whose refrain comes back after every verse."
_ZOO = "Write JSON with 5 items."


def _served_by(topology: str) -> Mapping[str, Any]:
    (application,) = yaml.safe_load((ROOT / topology).read_text())["applications"]
    return {**application["args"], "grpc": None}


@contextmanager
def _address(url: str | None, topology: str) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with running(_served_by(topology), _PORT) as app:
        yield app.url


def _open(browser: Browser, url: str, size: ViewportSize, scheme: Any = "light") -> Page:
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(url)
    page.locator("#server[data-state=ready]").wait_for(timeout=_ANSWER_MS)
    return page


def _limit(page: Page, tokens: int) -> None:
    page.locator("#settings summary").click()
    page.locator("#max_tokens").fill(str(tokens))
    page.locator("#settings summary").click()


def _ask(page: Page, prompt: str, tokens: int) -> None:
    _limit(page, tokens)
    page.locator("#prompt").fill(prompt)
    page.keyboard.press("Enter")
    _await_answer(page)


def _await_answer(page: Page) -> None:
    page.locator(".facts", has_text="per round").last.wait_for(timeout=_ANSWER_MS)
    page.locator("#send").wait_for(timeout=_ANSWER_MS)
    page.wait_for_timeout(_NEXT_NUMBERS_MS)


def playground(url: str, folder: Path) -> Iterator[Path]:
    """An answer in light and dark and on a phone, and a race."""
    with chromium() as browser:
        page = _open(browser, url, _DESKTOP)
        _ask(page, _CODE, 128)
        yield _picture(page, folder / "playground.png")
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(_NEXT_NUMBERS_MS)
        yield _picture(page, folder / "playground-dark.png")
        page = _open(browser, url, _DESKTOP)
        _limit(page, 80)
        page.locator("#prompt").fill(_SONG)
        page.locator("#race").click()
        page.locator(".result button").wait_for(timeout=_ANSWER_MS)
        page.wait_for_timeout(_NEXT_NUMBERS_MS)
        yield _picture(page, folder / "race.png")
        page = _open(browser, url, _PHONE)
        page.locator("#examples button").first.click()
        _await_answer(page)
        page.evaluate("scrollTo(0, 0)")
        yield _picture(page, folder / "playground-narrow.png")


def zoo(url: str, folder: Path) -> Iterator[Path]:
    """An answer of several drafters, the tree of one of its rounds, and the strip under load."""
    with chromium() as browser:
        page = _open(browser, url, _DESKTOP, "dark")
        _ask(page, _ZOO, 160)
        _choose_widest(page)
        yield _picture(page, folder / "playground-zoo.png")
        page.emulate_media(color_scheme="light")
        yield _picture(page.locator("#round .scrolls"), folder / "tree.png")
        with _load(url):
            page.wait_for_timeout(_STRIP_MS)
            yield _picture(page.locator("footer"), folder / "strip.png")


@contextmanager
def _load(url: str) -> Iterator[None]:
    """Closed-loop clients, in a thread, until the block ends."""
    requests = mixed_requests(96)
    ended = threading.Event()

    async def ask(first: int) -> None:
        async with session(_ANSWER_MS / 1000) as client:
            for number in range(first, len(requests), _CLIENTS):
                if ended.is_set():
                    return
                body = {
                    "model": TARGET,
                    "prompt": list(requests[number].prompt),
                    "max_tokens": 96,
                    "temperature": float(number // _CLIENTS % 2),
                    "ignore_eos": True,
                    "slo": _SLO,
                }
                await read(client, url, body, ReceivedStream())

    async def run() -> None:
        await asyncio.gather(*map(ask, range(_CLIENTS)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _choose_widest(page: Page) -> None:
    """The token whose round's tree has the most drafts beside the accepted path."""
    tokens, best = page.locator(".token"), (-1, 0)
    for number in range(0, tokens.count(), 2):
        tokens.nth(number).dispatch_event("click")
        drawn = page.locator("#round .tree")
        fallen, accepted = (
            drawn.locator(f".node.{kind}").count() for kind in ("fallen", "accepted")
        )
        best = max(best, (min(fallen, 6) * min(accepted, 4), number))
    tokens.nth(best[1]).dispatch_event("click")


def _picture(what: Any, path: Path) -> Path:
    what.screenshot(path=path)
    return path


_PARTS: Mapping[str, tuple[str, Callable[[str, Path], Iterator[Path]]]] = {
    "playground": ("cluster.yaml", playground),
    "zoo": ("cluster/zoo.yaml", zoo),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--url", help="of a running application without API keys")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    large = []
    for topology in dict.fromkeys(_PARTS[name][0] for name in options.only):
        with _address(options.url, topology) as url:
            for name in options.only:
                if _PARTS[name][0] != topology:
                    continue
                for path in _PARTS[name][1](url, options.folder):
                    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)
                    large += [path] if path.stat().st_size > _MOST_BYTES else []
    for path in large:
        print(f"{path} is larger than {_MOST_BYTES / 1000:.0f} kB")
    if options.url is None:
        end_after_ray(bool(large))


if __name__ == "__main__":
    main()

"""Makes the pictures of the README and docs/playground.md in docs/images/.

    python -m benchmarks.screenshots

It drives the playground of a running application (`--url`), by default one that it starts as `make
serve` does, in the machine's own Chromium.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from playwright.sync_api import Page, ViewportSize

from benchmarks.browser import chromium
from benchmarks.processes import end_after_ray
from benchmarks.serving.app import running

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_TOPOLOGY = Path(__file__).parents[1] / "cluster.yaml"
_PORT = 8147
_SIZE: ViewportSize = {"width": 1280, "height": 800}
_ANSWER_MS = 120_000
_NEXT_NUMBERS_MS = 1200
"""Until the strip has drawn the end of the answer."""
_PROMPTS = {
    "answer": "Write a Python class of a shopping cart with add, remove and total.",
    # Another one: lookups find past answers, so the same would look too good.
    "race": "Write a song whose refrain comes back after every verse.",
}


@contextmanager
def _address(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    (application,) = yaml.safe_load(_TOPOLOGY.read_text())["applications"]
    with running({**application["args"], "grpc": None}, _PORT) as app:
        yield app.url


def take(url: str, folder: Path) -> list[Path]:
    """The pictures: an answer with the tree of a round in light and dark, and a race."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with chromium() as browser:
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        page.goto(url)
        page.locator("#server[data-state=ready]").wait_for()
        _ask(page, _PROMPTS["answer"])
        made.append(_picture(page, folder / "playground.png"))
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(_NEXT_NUMBERS_MS)
        made.append(_picture(page, folder / "playground-dark.png"))
        page.goto(url)
        page.locator("#server[data-state=ready]").wait_for()
        page.emulate_media(color_scheme="light")
        page.locator("#prompt").fill(_PROMPTS["race"])
        page.locator("#race").click()
        page.locator(".result button").wait_for(timeout=_ANSWER_MS)
        made.append(_picture(page, folder / "race.png"))
    return made


def _ask(page: Page, prompt: str) -> None:
    page.locator("#prompt").fill(prompt)
    page.keyboard.press("Enter")
    page.locator(".facts", has_text="per round").wait_for(timeout=_ANSWER_MS)
    page.wait_for_timeout(_NEXT_NUMBERS_MS)


def _picture(page: Page, path: Path) -> Path:
    page.screenshot(path=path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running application without API keys")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    with _address(options.url) as url:
        for path in take(url, options.folder):
            print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
    if options.url is None:
        end_after_ray(0)


if __name__ == "__main__":
    main()

"""A headless Chromium for tests and pictures of the playground: the machine's, never a download."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = "no Chromium is installed: apt-get install chromium"


def chromium_path() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()

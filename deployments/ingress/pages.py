"""The playground's static files (docs/playground.md), which need nothing from other hosts and no
build step."""

from pathlib import Path

from fastapi import Response

FOLDER = Path(__file__).parents[1] / "playground"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Nothing from other hosts, no inline scripts or styles, no frames: whatever a model writes, it
    # cannot become code.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Another version of Spindle may be at this address tomorrow.
    "Cache-Control": "no-cache",
}


def _responses() -> dict[str, Response]:
    files = {
        f"/playground/{file.name}": Response(
            file.read_bytes(), media_type=_TYPES[file.suffix], headers=_HEADERS
        )
        for file in sorted(FOLDER.iterdir())
    }
    return {"/": files.pop("/playground/index.html"), **files}


RESPONSES = _responses()
"""By path. They have nothing to hide, so they need no key: the page asks for one."""

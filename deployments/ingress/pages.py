"""The pages that browsers get: the API's documentation, and the playground's static files
(docs/playground.md). They need nothing from other hosts and no build step."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

Schema = Mapping[str, Any]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
    "color-scheme:light dark}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #8886;padding:.3em .6em .3em 0;text-align:left;"
    "vertical-align:top}code{font-family:ui-monospace,monospace}"
)


def add_docs_page(http: FastAPI) -> None:
    """Outside of the API's schema."""

    @http.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        html = page(http.openapi(), request.scope.get("root_path", ""))
        return Response(html, media_type="text/html; charset=utf-8", headers=_HEADERS)


def page(openapi: Schema, root: str = "") -> str:
    """`root`: the path that the application is served under."""
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f'<p>The schema for programs: <a href="{escape(root)}/openapi.json">openapi.json</a>.</p>'
    ]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description', ''))}</p>")
            parts += _links("Takes", operation.get("requestBody", {}))
            for response in operation.get("responses", {}).values():
                parts += _links("Answers with", response)
    parts.append("<h1>Types</h1>")
    for name, schema in sorted(openapi.get("components", {}).get("schemas", {}).items()):
        parts.append(f'<h2 id="{escape(name)}">{escape(name)}</h2>')
        parts.append(f"<p>{escape(schema.get('description', ''))}</p>")
        parts += _fields(schema)
    return "".join(parts) + "</html>"


def _links(verb: str, content: Schema) -> Iterator[str]:
    for one in content.get("content", {}).values():
        if (kind := _type(one.get("schema", {}))) != "any":
            yield f"<p>{verb} {kind}.</p>"


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    if not schema.get("properties"):
        return
    yield "<table><tr><th>field</th><th>type</th><th>meaning</th></tr>"
    for name, one in schema["properties"].items():
        default = (
            "" if one.get("default") is None else f", {escape(str(one['default']))} if left out"
        )
        kind = _type(one) + (", required" if name in required else default)
        meaning = escape(one.get("description", ""))
        yield f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{meaning}</td></tr>"
    yield "</table>"


def _type(schema: Schema) -> str:
    """As HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return " or ".join(_type(one) for one in schema[keyword])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))


FOLDER = Path(__file__).parents[1] / "playground"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PLAYGROUND_HEADERS = {
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
            file.read_bytes(), media_type=_TYPES[file.suffix], headers=_PLAYGROUND_HEADERS
        )
        for file in sorted(FOLDER.iterdir())
    }
    return {"/": files.pop("/playground/index.html"), **files}


RESPONSES = _responses()
"""By path. They have nothing to hide, so they need no key: the page asks for one."""


def add_playground(http: FastAPI) -> None:
    """Outside of the API's schema."""
    for path, response in RESPONSES.items():
        http.routes.append(Route(path, response, methods=["GET"], name=path))

"""`python -m tests.cluster.config_reference` writes the tables of docs/config.md."""

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cluster.config import AppConfig, Choice

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
_FIRST_TABLE = "### The top level"
_LISTS = {"drafters": "drafters[]", "slo_classes": "slo_classes.NAME"}


def tables(section: type[BaseModel] = AppConfig, path: str = "") -> Iterator[str]:
    """One Markdown table per section, outer sections first."""
    rows = ["| field | default | |", "| --- | --- | --- |"]
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in section.model_fields.items():
        kind = _section_of(field.annotation)
        if kind is not None:
            inner.append((kind, f"{path}.{name}".removeprefix(".")))
        rows.append(f"| `{name}` | {_default(field)} | {_description(field)} |")
    title = f"### {path}" if path else _FIRST_TABLE
    about = inspect.cleandoc(section.__doc__ or "")
    yield "\n".join([title, "", *([about, ""] if about else []), *rows])
    for kind, where in inner:
        yield from tables(kind, _LISTS.get(where, where))


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section type that a field holds, directly, in a list or in a mapping."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Choice:
            return kind
    return None


def _description(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none"
    value = field.default
    if field.default_factory is not None:
        return "by the others" if field.default_factory_takes_validated_data else "`{}`"
    if isinstance(value, BaseModel):
        name = getattr(value, "name", None)
        return f"`name: {name}`" if name else "see below"
    if is_dataclass(value):
        return "of `MicroBatchParams`"
    return "`null`" if value is None else f"`{_plain(value)}`"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(value)


def written(page: str) -> str:
    """The page with its tables rewritten; they are all that follows the first one's title."""
    return page[: page.index(_FIRST_TABLE)] + "\n\n".join(tables()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

"""The training corpus: text that every Python installation has (standard-library sources,
docstrings, pydoc topics)."""

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Large, repetitive or not meant to be read.
_SKIPPED_PARTS = {
    "test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3",
    "turtledemo", "encodings", "pydoc_data", "__pycache__", "_sysconfigdata",
}  # fmt: skip
_HELD_OUT_ONE_IN = 20
_MAX_FILE_CHARS = 60_000
_MAX_DOCSTRING_CHARS = 500
_SENTENCE = re.compile(r"[A-Z][a-z][^.\n\d<>]{20,90}\.")


@dataclass(frozen=True)
class DocumentedFunction:
    """A short library function, with the parts from which tasks are made."""

    qualified_name: str
    signature: str
    summary: str
    docstring: str
    source: str


@dataclass
class Corpus:
    code: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    functions: list[DocumentedFunction] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def is_held_out(name: str) -> bool:
    """Whether a module or topic is held out: a fixed twentieth of them is never used for
    training."""
    return zlib.crc32(name.encode()) % _HELD_OUT_ONE_IN == 0


def load_corpus(held_out: bool = False) -> Corpus:
    """All text of one split, in a fixed order."""
    corpus = Corpus()
    for name, text in _library_modules():
        if is_held_out(name) == held_out:
            _add_module(corpus, name, text)
    for name, text in _pydoc_topics():
        if is_held_out(name) == held_out:
            corpus.prose.append(text)
    for text in corpus.prose:
        corpus.sentences += [" ".join(found.split()) for found in _SENTENCE.findall(text)]
    return corpus


def _library_modules() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_PARTS.intersection(relative.parts) or path.stem.startswith("_sysconfigdata"):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 200 < len(text) < 4 * _MAX_FILE_CHARS:
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            yield name, text[:_MAX_FILE_CHARS]


def _pydoc_topics() -> Iterator[tuple[str, str]]:
    from pydoc_data import topics

    yield from sorted(topics.topics.items())


def _add_module(corpus: Corpus, name: str, text: str) -> None:
    corpus.code.append(text)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a truncated file can still be used as plain code
        return
    docstrings = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None or len(docstring) < 40:
            continue
        docstrings.append(
            f"{name}.{node.name}\n{docstring}" if hasattr(node, "name") else docstring
        )
        if isinstance(node, ast.FunctionDef):
            function = _documented_function(name, node, docstring)
            if function is not None:
                corpus.functions.append(function)
    if docstrings:
        corpus.prose.append("\n\n".join(docstrings))


def _documented_function(
    module: str, node: ast.FunctionDef, docstring: str
) -> DocumentedFunction | None:
    node.body = node.body[1:]  # docstrings are tasks of their own
    node.decorator_list = []
    if node.name.startswith("__") or not node.body:
        return None
    source = ast.unparse(node)
    summary = " ".join(docstring.split("\n\n")[0].split())
    if not (60 < len(source) < 900 and 15 < len(summary) < 160):
        return None
    return DocumentedFunction(
        qualified_name=f"{module}.{node.name}",
        signature=source.partition("\n")[0].removesuffix(":"),
        summary=summary,
        docstring=docstring[:_MAX_DOCSTRING_CHARS],
        source=source,
    )

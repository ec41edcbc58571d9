"""What the documentation refers to exists."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "benchmarks", "lab", "examples")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
README_LINES = 120
WRITTEN_BY_READERS = (
    "engine/drafters/repeat.py",
    "tests/engine/drafters/test_repeat.py",
    "policies/selection/smallest.py",
)
"""Files of the examples in CONTRIBUTING.md."""
OTHERS_MODULES = ("pytest", "venv")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"```.*?```", re.DOTALL)
BARE = re.compile(r"`(\w+\.py)`")
PATH = re.compile(r"(?<![\w/.])((?:[\w.-]+/)+[\w.-]+\.(?:py|yaml|json|proto|env))\b")
COMMAND = re.compile(r"python -m ([\w.{},]+)((?:\\\n|(?!python -m )[^`\n]|\n(?=[^`\n]*`))*)")
"""The module, and what follows: of an inline command up to its end in the next line."""
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@cache
def text(page: Path) -> str:
    return page.read_text()


@cache
def source_names() -> set[str]:
    """The names of all Python files, without their folders."""
    folders = (
        "actors",
        "benchmarks",
        "cluster",
        "deployments",
        "engine",
        "lab",
        "policies",
        "tests",
    )
    return {file.name for folder in folders for file in (ROOT / folder).rglob("*.py")}


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text(page))]
    return {heading.strip().replace(" ", "-") for heading in kept}


def modules(command: str) -> list[str]:
    """One for each name in braces, as a shell would write them out."""
    found = re.search(r"\{([^}]*)\}", command)
    if found is None:
        return [command]
    begin, end = command[: found.start()], command[found.end() :]
    return [begin + name + end for name in found.group(1).split(",")]


@every_page
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", text(page))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    for name in PATH.findall(text(page)):
        if name not in WRITTEN_BY_READERS:
            assert (ROOT / name).is_file() or (page.parent / name).is_file(), name
    for name in BARE.findall(text(page)):
        assert name in source_names(), name


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Our modules that the page says to run, each with its arguments."""
    for command, arguments in COMMAND.findall(text(page)):
        for module in modules(command.rstrip(".")):
            if module.split(".")[0] not in OTHERS_MODULES and "NAME" not in module:
                yield module, arguments


@cache
def defined_options(module: str) -> set[str]:
    """Those that the module adds to its parser, and that the benchmarks' own parser has."""
    path = ROOT / module.replace(".", "/")
    files = (
        [path / "__main__.py", path / "options.py"] if path.is_dir() else [path.with_suffix(".py")]
    )
    source = "".join(text(file) for file in files if file.is_file())
    if "= parser(" in source:
        source += text(ROOT / "benchmarks" / "report.py")
    return {quoted.strip('"') for quoted in re.findall(r'"--[a-z][\w-]*"', source)}


@every_page
def test_modules_that_are_run_exist(page: Path) -> None:
    for module, _ in commands(page):
        assert find_spec(module) is not None, module


@every_page
def test_options_of_commands_are_the_modules(page: Path) -> None:
    for module, arguments in commands(page):
        assert {*OPTION.findall(arguments)} <= defined_options(module), (module, arguments)


def test_every_page_of_the_docs_is_in_its_index() -> None:
    for folder in (ROOT / "docs", ROOT / "lab" / "docs"):
        index = text(folder / "README.md")
        linked = {(folder / link.partition("#")[0]).resolve() for link in LINK.findall(index)}
        pages = {page for page in PAGES if folder in page.parents and page.name != "README.md"}
        assert pages <= linked, sorted(str(page.relative_to(ROOT)) for page in pages - linked)


def test_every_page_of_the_docs_is_in_the_sites_navigation() -> None:
    site = text(ROOT / "mkdocs.yml")
    pages = {str(page.relative_to(ROOT)) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert not {page for page in pages if f": {page}\n" not in site}


def test_the_readme_is_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= README_LINES

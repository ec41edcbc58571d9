"""What is imported is declared in pyproject.toml, and pinned in both lists of constraints."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PRODUCT = ("policies", "cluster", "engine", "actors", "deployments")
FOLDERS = (*PRODUCT, "benchmarks", "lab", "examples", "tests")
OF_NAMESPACES = {"google.protobuf": "protobuf"}
"""Distributions of packages whose top-level name belongs to several."""


def names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


RUNTIME = names(PROJECT["dependencies"])
EXTRAS = PROJECT["optional-dependencies"]
VLLM = names([*EXTRAS["cpu"], *EXTRAS["gpu"]])
DEVELOPMENT, PEERS = names(EXTRAS["dev"]), names(EXTRAS["peers"])


@cache
def imported(folder: str) -> frozenset[str]:
    """The distributions that the folder's modules import; the import's name where none has it."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        for module in modules(ast.parse(file.read_bytes())):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in FOLDERS:
                continue
            two = ".".join(module.split(".")[:2])
            (distribution, *_) = [OF_NAMESPACES[two]] if two in OF_NAMESPACES else of(top)
            found.add(normal(distribution))
    return frozenset(found)


def modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def of(top: str) -> list[str]:
    return DISTRIBUTIONS.get(top, [top])


DISTRIBUTIONS = packages_distributions()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_is_declared(folder: str) -> None:
    declared = RUNTIME | VLLM | (set() if folder in PRODUCT else DEVELOPMENT | PEERS)
    assert imported(folder) <= declared


def test_what_is_declared_for_serving_is_imported_by_the_product() -> None:
    assert set().union(*map(imported, PRODUCT)) >= RUNTIME


@pytest.mark.parametrize("build", ["cpu", "gpu"])
def test_each_layer_of_the_environment_pins_what_is_declared_for_it(build: str) -> None:
    """`make serve` installs the first, `TARGET=vllm` the second as well, `make test` all three."""
    serving, vllm, tests = layers = [pinned(name) for name in (build, f"vllm-{build}", "test")]
    assert serving >= RUNTIME
    assert vllm >= names(EXTRAS[build]) - {"intel-openmp"}
    assert tests >= DEVELOPMENT - serving - vllm
    assert sum(map(len, layers)) == len(serving | vllm | tests), "each package in one layer"


@pytest.mark.parametrize("build", ["cpu", "gpu"])
def test_pins_are_within_what_is_declared(build: str) -> None:
    pins = versions(build) | versions(f"vllm-{build}") | versions("test")
    declared = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS[build]]
    for one in map(Requirement, declared):
        if (version := pins.get(normal(one.name))) is not None:
            assert one.specifier.contains(version, prereleases=True), f"{one} pinned to {version}"


def pinned(layer: str) -> set[str]:
    return set(versions(layer))


def versions(layer: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{layer}.txt").read_text().splitlines()
    pins = [line.partition(";")[0].partition("==") for line in lines]
    return {normal(name): version for name, _, version in pins}

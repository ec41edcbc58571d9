"""`python -m cluster.check FILE`: checks whether a Serve config is valid and fits. Starts nothing.

Prints the resources of every process and where it runs. Exit status 1 if a field is invalid or a
resource is missing, which is named.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cluster.config import AppConfig, ValidationError, problems
from cluster.config.drafter_kinds import drafter_kind
from cluster.fitting import Node, missing, parse_node, this_machine
from cluster.footprint import Footprint, footprints
from cluster.placement import plan
from cluster.quantized_targets import cpu_problem, processor_flags
from cluster.vocabularies import shared_tokens

_OURS = "deployments.app:build"
_RAY_SERVICE = "RayService"
_REPLICA = "Replica"
"""The deployment whose user_config holds policies."""
_HEADER = (
    "process",
    "bundle",
    "GPU",
    "CPU",
    "threads",
    "weights MB",
    "KV MB",
    "memory MB",
)


class BadFile(ValueError):
    """The file is not a valid Serve config."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        configs = [(one.name, _validated(one)) for one in read(options.file)]
        return max([_report(*one, options.node) for one in configs])
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


class Application(NamedTuple):
    """One application of a Serve config."""

    name: str
    args: Mapping[str, Any]
    user_config: Mapping[str, Any] | None = None
    """The user_config of the replicas: policies that replace those in the arguments."""


def read(file: Path) -> list[Application]:
    """Spindle's applications in a Serve config or in a KubeRay RayService."""
    try:
        content = yaml.safe_load(file.read_text())
        if content.get("kind") == _RAY_SERVICE:
            content = yaml.safe_load(content["spec"]["serveConfigV2"])
        applications = [
            Application(
                one["name"], one.get("args") or {}, _user_config(one.get("deployments") or [])
            )
            for one in content["applications"]
            if one.get("import_path", _OURS) == _OURS
        ]
    except (OSError, UnicodeError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise BadFile(f"{file}: no Serve config with named applications ({error!r})") from error
    if not applications:
        raise BadFile(f"{file}: applications: there are none of {_OURS}")
    names = [one.name for one in applications]
    if len({*names}) < len(names):
        raise BadFile(f"{file}: applications: two have one name; Serve refuses that")
    return applications


def _user_config(deployments: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    of_replicas = [one for one in deployments if one["name"] == _REPLICA]
    return of_replicas[0].get("user_config") if of_replicas else None


def _validated(application: Application) -> AppConfig:
    where = application.name
    try:
        config = AppConfig.model_validate(application.args)
        if application.user_config is None:
            return config
        where = f"{application.name}: user_config of {_REPLICA}"
        return config.with_policies(application.user_config)
    except ValidationError as error:
        raise BadFile("\n".join(f"{where}: {line}" for line in problems(error))) from error


def _report(name: str, config: AppConfig, given: Sequence[Node] | None) -> int:
    nodes = given or [this_machine()]
    scaling = config.scaling
    processes = footprints(config, plan(config))
    replicas = f"{scaling.min_replicas}"
    if scaling.max_replicas > scaling.min_replicas:
        replicas += f" to {scaling.max_replicas}"
    print(
        f"{name}: {config.served_name} on {config.target.backend}, replicas: {replicas}; of each:"
    )
    print("\n".join(table(processes)))
    lacking = missing(config, nodes)
    if not given and not config.target.gpus:
        problem = cpu_problem(config.target.header_path(), processor_flags())
        lacking += [] if problem is None else [f"processor: target.model: {problem}"]
    for line in lacking:
        print(f"missing  {line}", file=sys.stderr)
    if not lacking:
        print("\n".join(["It fits.", *_notes(config, processes, nodes)]))
    return 1 if lacking else 0


def table(processes: Sequence[Footprint]) -> Iterator[str]:
    total = [sum(amounts) for amounts in zip(*map(_amounts, processes), strict=True)]
    rows = [
        _HEADER,
        *(_row(one.process, str(one.bundle), _amounts(one)) for one in processes),
        _row("sum", "", total),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *aligned])


def _amounts(process: Footprint) -> Sequence[float]:
    shares = (process.gpus, process.cpus, process.threads)
    return (*shares, process.weights_bytes, process.kv_bytes, process.host_bytes)


def _row(name: str, bundle: str, amounts: Sequence[float]) -> tuple[str, ...]:
    shares = (f"{share:g}" for share in amounts[:3])
    return (name, bundle, *shares, *(f"{size / 1e6:,.1f}" for size in amounts[3:]))


def _notes(
    config: AppConfig, processes: Sequence[Footprint], nodes: Sequence[Node]
) -> Iterator[str]:
    """Remarks on a config that fits but may not perform as expected."""
    scaling = config.scaling
    threads = sum(process.threads for process in processes) * scaling.min_replicas
    cores = sum(node.get("CPU", 0.0) for node in nodes)
    if threads > cores:
        yield f"note  {threads} threads on {cores:g} cores: they take turns."
    if config.api_keys and config.sharing == "all":
        yield (
            "note  sharing: all: a tenant that guesses a few words of another's prompt or answer "
            "can read on in what lookups draft and in cached_tokens (docs/security.md)."
        )
    lacking = missing(config, nodes, scaling.max_replicas)
    if lacking:
        yield f"note  {scaling.max_replicas} replicas need more nodes: {'; '.join(lacking)}."
    for number, drafter in enumerate(config.drafters):
        path = drafter.header_path()
        if path is None or not drafter_kind(drafter.kind).maps_tokens:
            continue
        shared = shared_tokens(config.target.header_path(), path)
        if shared is not None:
            yield (
                f"note  drafters.{number}: {drafter.model} has another tokenizer: it proposes the "
                f"{len(shared.ids):,} of the target's {config.target.architecture().vocab_size:,} "
                "tokens that both have."
            )
    for process in processes:
        if not process.weights_bytes and process.process != "replica":
            yield f"note  {process.process}: no safetensors, so its weights are not counted."


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cluster.check", description=__doc__)
    parser.add_argument("file", type=Path, help="a Serve config, or a RayService manifest")
    parser.add_argument(
        "--node",
        type=parse_node,
        action="append",
        metavar="CPU=8,GPU=2,memory=64GB,gpu_memory=80GB",
        help="a node of the cluster; once for each, the head first. Left out: this machine",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Places the processes of a replica: the bundles of its Ray placement group.

A bundle is on one node, and a group gets all of its resources at once or waits for them. Hosts
without a GPU share the replica's own bundle, so that messages to them stay on one machine. Every
drafter with a GPU has a bundle of its own, anywhere in the cluster. The ranks of a tensor-parallel
target share one bundle: they exchange activations twice per layer, for which only links within a
node are fast enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cluster.config import AppConfig, DrafterConfig, TargetConfig

REPLICA = 0
"""Index of the replica's own bundle: Serve places the replica into the first one."""
OWN_CPUS = 0.05
"""CPUs reserved for each of replica, ingress and router, which compute little."""
HEAD_NODE = "node:__internal_head__"
"""Ray's resource that only the head node has. The ingress requires it, because the head node
outlives all others."""
HEAD_SHARE = 0.001
"""The amount that the ingress requires of HEAD_NODE."""
STRATEGY = "PACK"
"""Ray's strategy of using as few nodes as possible."""
ACCELERATOR = "accelerator_type:"
"""Prefix of Ray's resource that only nodes with a certain type of GPU have."""
_ACCELERATOR_SHARE = 0.001
"""The amount that each bundle requires of such a resource."""
_DIGITS = 4
"""Decimal digits: Ray counts resources in ten-thousandths."""

Bundle = dict[str, float]


@dataclass(frozen=True, slots=True)
class Placement:
    bundles: tuple[Bundle, ...]
    target: int | None
    """The bundle index of the target's actor. None: inline."""
    lanes: Mapping[str, int]
    """The bundle index of each lane that is an actor."""
    replica_options: Mapping[str, float]
    """Ray actor options of the replica itself, within its bundle."""


def plan(config: AppConfig) -> Placement:
    target = config.target
    inline_gpus = sum(one.gpus for one in _models(config) if one.placement == "inline")
    bundles = [_bundle(OWN_CPUS, inline_gpus)]
    of_target = None
    if target.placement == "actor":
        of_target = _place(bundles, target, target.cpus, target.gpus * target.tensor_parallel)
    lanes = {
        lane: _place(bundles, drafter, drafter.cpus, drafter.gpus)
        for drafter in config.drafters
        if drafter.placement == "actor"
        for lane in drafter.lanes
    }
    options = {"num_cpus": OWN_CPUS, "num_gpus": inline_gpus}
    return Placement(tuple(bundles), of_target, lanes, options)


def _models(config: AppConfig) -> Iterator[TargetConfig | DrafterConfig]:
    yield config.target
    yield from config.drafters


def _place(
    bundles: list[Bundle], model: TargetConfig | DrafterConfig, cpus: float, gpus: float
) -> int:
    if gpus:
        bundles.append(_bundle(cpus, gpus, model.accelerator))
        return len(bundles) - 1
    bundles[REPLICA]["CPU"] = round(bundles[REPLICA]["CPU"] + cpus, _DIGITS)
    return REPLICA


def _bundle(cpus: float, gpus: float, accelerator: str | None = None) -> Bundle:
    required = {"CPU": round(cpus, _DIGITS), "GPU": round(gpus, _DIGITS)}
    if accelerator is not None:
        required[ACCELERATOR + accelerator] = _ACCELERATOR_SHARE
    return {resource: amount for resource, amount in required.items() if amount}

"""Where everything of a replica runs: the bundles of its Ray placement group.

A bundle lies on one node, and a group as a whole is given its resources or waits for them. Hosts
without a GPU share the replica's own bundle, so that a message to them stays on the machine.
Every drafter with a GPU has a bundle to itself, anywhere in the cluster. The ranks of a
tensor-parallel target share one: they exchange activations twice in every layer, which only one
node's links bear.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cluster.config import BACKENDS, AppConfig, DrafterConfig, TargetConfig

REPLICA = 0
"""The replica's own bundle: Serve places the replica into the first one."""
OWN_CPUS = 0.05
"""Of the replica, the ingress and the router, which compute little."""
HEAD_NODE = "node:__internal_head__"
"""Ray's own resource of the head node, which is the last one to go: the ingress lies there ..."""
HEAD_SHARE = 0.001
"""... and takes a sliver of it."""
STRATEGY = "PACK"
"""On as few nodes as there is room for."""
ACCELERATOR = "accelerator_type:"
"""Before a type of GPU: Ray's resource that only nodes with such GPUs have ..."""
_ACCELERATOR_SHARE = 0.001
"""... and of which everyone takes a sliver."""
_DIGITS = 4
"""Ray counts resources in ten-thousandths."""

Bundle = dict[str, float]


@dataclass(frozen=True, slots=True)
class Placement:
    bundles: tuple[Bundle, ...]
    ranks: tuple[int, ...]
    """The bundle of each actor of the target: one for each rank, or one in all where the backend
    starts its ranks itself. Empty: inline."""
    lanes: Mapping[str, int]
    """The bundle of each lane that is an actor."""
    replica_options: Mapping[str, float]
    """What the replica itself asks of its bundle, as Ray's actor options."""
    strategy: str = STRATEGY
    replica: int = REPLICA


def plan(config: AppConfig) -> Placement:
    target = config.target
    inline_gpus = sum(one.gpus for one in _models(config) if one.placement == "inline")
    bundles = [_bundle(OWN_CPUS, inline_gpus)]
    ranks: tuple[int, ...] = ()
    if target.placement == "actor":
        actors = target.tensor_parallel if BACKENDS[target.backend].rank_actors else 1
        gpus = target.gpus * target.tensor_parallel
        ranks = (_place(bundles, target, target.cpus * actors, gpus),) * actors
    lanes = {
        lane: _place(bundles, drafter, drafter.cpus, drafter.gpus)
        for drafter in config.drafters
        if drafter.placement == "actor"
        for lane in drafter.lanes
    }
    options = {"num_cpus": OWN_CPUS, "num_gpus": inline_gpus}
    return Placement(tuple(bundles), ranks, lanes, options)


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
    asked = {"CPU": round(cpus, _DIGITS), "GPU": round(gpus, _DIGITS)}
    if accelerator is not None:
        asked[ACCELERATOR + accelerator] = _ACCELERATOR_SHARE
    return {resource: amount for resource, amount in asked.items() if amount}

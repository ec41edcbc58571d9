"""Translates the config's models into the specs from which actors/hosts/fleet.py starts hosts."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ray.util.placement_group import get_current_placement_group

from actors.coordinator.settings import Limits
from actors.hosts.facts import Facts
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Group
from actors.hosts.specs import DrafterSpec, TargetSpec
from cluster.cache import cache_dir
from cluster.checkpoints import eagle3_shape
from cluster.config import AppConfig
from cluster.config.drafter_kinds import drafter_kind
from cluster.placement import Placement, plan
from cluster.sources import is_on_hub

if TYPE_CHECKING:  # a replica whose models are actors does not import it
    import torch

MEASURE_S = 5.0
"""Time for measuring a model at its first start; costs are refined while serving
(policies/estimates/online_cost.py)."""


async def start_hosts(
    config: AppConfig,
    replica: str,
    progress: Callable[[str], None],
    known: Facts,
) -> Fleet:
    """Starts the hosts; those that are actors go into the placement group that Serve made for the
    replica. `known`: of models, by other replicas."""
    placements = [config.target.placement, *(drafter.placement for drafter in config.drafters)]
    if "inline" in placements:
        from engine.cpu.threads import set_threads

        set_threads(config.threads)
    placement = plan(config)
    group = Group(replica, get_current_placement_group())
    models = [config.target.model, *(drafter.model for drafter in config.drafters)]
    for model in dict.fromkeys(models):
        if model is not None and is_on_hub(model):
            progress(f"Spindle: {model} of the hub, fetched first if this node lacks it")
    # Fetching a model takes minutes, in which the replica answers Serve's health checks.
    target, drafters = await asyncio.to_thread(
        lambda: (target_spec(config, placement), drafter_specs(config, placement))
    )
    return await start_fleet(
        target,
        drafters,
        cache_dir() / "profiles",
        group,
        limits_of(config),
        progress,
        MEASURE_S,
        known,
    )


def target_spec(config: AppConfig, placement: Placement) -> TargetSpec:
    """The target's spec; writes the inflated checkpoint first if the config sets `inflate_to`."""
    target = config.target
    return TargetSpec(
        checkpoint=target.path(),
        dtype=_dtype(target.dtype),
        kv_tokens=target.kv_tokens,
        quantize=target.own_quantize,
        backend=target.backend,
        engine_args=target.engine_args,
        tensor_parallel=target.tensor_parallel,
        feature_layers=_feature_layers(config),
        placement=target.placement,
        gpus=target.gpus,
        cpus=target.cpus,
        threads=target.threads,
        bundles=() if placement.target is None else (placement.target,),
    )


def _feature_layers(config: AppConfig) -> tuple[int, ...]:
    own = config.target.architecture().num_hidden_layers
    heads = [one.header_path() for one in config.drafters if drafter_kind(one.kind).reads_features]
    shapes = [eagle3_shape(head, own) for head in heads if head is not None]
    return tuple(sorted({layer for shape in shapes for layer in shape.aux_layers}))


def drafter_specs(config: AppConfig, placement: Placement) -> list[DrafterSpec]:
    return [
        DrafterSpec(
            name=drafter.name,
            kind=drafter.kind,
            checkpoint=drafter.path(),
            dtype=_dtype(drafter.dtype),
            capacity=drafter.max_batch,
            kv_tokens=drafter.kv_capacity(config.target),
            options=drafter.options,
            target=config.target.path() if drafter_kind(drafter.kind).reads_features else None,
            instances=drafter.instances,
            placement=drafter.placement,
            gpus=drafter.gpus,
            cpus=drafter.cpus,
            threads=drafter.threads,
            bundles=tuple(
                placement.lanes[lane] for lane in drafter.lanes if drafter.placement == "actor"
            ),
        )
        for drafter in config.drafters
    ]


def _dtype(name: str) -> "torch.dtype | None":
    """None: chosen where the model runs, because its node may have another processor."""
    if name == "auto":
        return None
    import torch

    return getattr(torch, name)


def limits_of(config: AppConfig) -> Limits:
    return Limits(**config.limits.model_dump(), kv_tokens=config.target.kv_tokens)

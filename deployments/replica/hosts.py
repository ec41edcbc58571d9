"""Starts the hosts of a replica, as its config says (actors/hosts/fleet.py)."""

import asyncio
from collections.abc import Callable

from ray.util.placement_group import get_current_placement_group

from actors.coordinator.settings import Limits
from actors.hosts.fleet import Fleet, start_fleet
from actors.hosts.spawn import Group
from cluster.cache import cache_dir
from cluster.config import AppConfig, DrafterConfig, TargetConfig
from cluster.placement import plan
from cluster.sources import is_on_hub

MEASURE_S = 5.0
"""Time for measuring a model at its first start; costs are refined while serving
(policies/estimates/online_cost.py)."""


async def start_hosts(config: AppConfig, replica: str, progress: Callable[[str], None]) -> Fleet:
    """Those that are actors go into the placement group that Serve made for the replica."""
    models: list[TargetConfig | DrafterConfig] = [config.target, *config.drafters]
    if any(model.placement == "inline" for model in models):
        from engine.cpu.threads import set_threads

        set_threads(config.threads)
    for name in dict.fromkeys(model.model for model in models):
        if name is not None and is_on_hub(name):
            progress(f"Spindle: {name} of the hub, fetched first if this node lacks it")
    for model in models:
        # Fetching takes minutes, in which the replica answers Serve's health checks.
        await asyncio.to_thread(model.path)
    return await start_fleet(
        config.target,
        config.drafters,
        cache_dir() / "profiles",
        Group(replica, get_current_placement_group(), plan(config)),
        limits_of(config),
        progress,
        MEASURE_S,
    )


def limits_of(config: AppConfig) -> Limits:
    return Limits(**config.limits.model_dump(), kv_tokens=config.target.kv_tokens)

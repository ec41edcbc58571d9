"""The router actor: one for all replicas, kept by Serve as a deployment actor.

Serve pickles this module by value and unpickles it in its controller, which may lack our root:
nothing of ours is imported before the actor lives.
"""

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig

NAME = "router"


class RouterActor:
    """actors/router/router.py, which documents the messages."""

    def __init__(self) -> None:
        from actors.router.router import Router

        self._router = Router()

    async def exchange(self, report: Any) -> Any:
        return await self._router.exchange(report)

    async def view(self) -> Any:
        return await self._router.view()


def router_config(cpus: float) -> DeploymentActorConfig:
    return DeploymentActorConfig(
        name=NAME, actor_class=ray.remote(RouterActor), actor_options={"num_cpus": cpus}
    )


async def exchange(report: Any) -> Any:
    """With the router as it is now: a handle kept from before may be that of a dead one. Raises
    what Ray raises."""
    router = await asyncio.to_thread(serve.get_deployment_actor, NAME)
    return await router.exchange.remote(report)

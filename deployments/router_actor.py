"""The router actor, one for all replicas, which Serve runs as a deployment actor.

Serve pickles this module by value and unpickles it in its controller, whose import path may lack
the project root. So modules of the project are imported only inside the running actor.
"""

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig

NAME = "router"


class RouterActor:
    """Wraps the Router of actors/router/router.py, which documents the messages."""

    def __init__(self) -> None:
        from actors.router.router import Router

        self._router = Router()

    async def exchange(self, report: Any) -> Any:
        return await self._router.exchange(report)


def router_config(cpus: float) -> DeploymentActorConfig:
    return DeploymentActorConfig(
        name=NAME, actor_class=ray.remote(RouterActor), actor_options={"num_cpus": cpus}
    )


async def exchange(report: Any) -> Any:
    """Exchanges reports with the current router. The handle is looked up every time, because an
    older one may refer to a router that has been replaced. Ray's exceptions pass through."""
    router = await asyncio.to_thread(serve.get_deployment_actor, NAME)
    return await router.exchange.remote(report)

"""The router actor, one for all replicas, which Serve runs as a deployment actor.

Serve pickles this module by value and unpickles it in its controller, whose import path may lack
the project root. So modules of the project are imported only inside the running actor.
"""

import asyncio
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig

NAME = "router"


class RouterActor:
    """Wraps what actors/router/ documents, with the messages."""

    def __init__(self, past_tokens: int, outputs_file: Path | None) -> None:
        from actors.router.outputs_file import OutputsFile
        from actors.router.router import Router
        from actors.router.shared_outputs import SharedOutputs

        self._router = Router()
        self._outputs = SharedOutputs(past_tokens)
        self._file = None if outputs_file is None else OutputsFile(outputs_file, past_tokens)
        self._keeping: asyncio.Task[None] | None = None
        for output in self._file.read() if self._file else ():
            self._outputs.add(output)

    async def exchange(self, report: Any) -> Any:
        return await self._router.exchange(report)

    async def share(self, message: Any) -> Any:
        if self._file and self._keeping is None:  # here, as the constructor has no event loop
            self._keeping = asyncio.create_task(self._file.keep(self._outputs))
        return self._outputs.exchange(message)


def router_config(
    options: dict[str, Any], past_tokens: int, outputs_file: Path | None
) -> DeploymentActorConfig:
    """`options`: of the Ray actor. `past_tokens`: of past outputs that it keeps for all replicas;
    over restarts in `outputs_file`."""
    return DeploymentActorConfig(
        name=NAME,
        actor_class=ray.remote(RouterActor),
        init_kwargs={"past_tokens": past_tokens, "outputs_file": outputs_file},
        actor_options=options,
    )


async def exchange(report: Any) -> Any:
    return await _call("exchange", report)


async def share(message: Any) -> Any:
    return await _call("share", message)


async def _call(method: str, message: Any) -> Any:
    """Calls the current router. The handle is looked up every time, because an older one may refer
    to a router that has been replaced. Ray's exceptions pass through."""
    router = await asyncio.to_thread(serve.get_deployment_actor, NAME)
    return await getattr(router, method).remote(message)

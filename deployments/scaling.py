"""The number of replicas that the load requires: a policy for Serve's autoscaler.

Serve pickles this module by value and runs it in its controller, where the project root may be
missing from the import path. So it imports nothing from the project. Bounds and delays are applied
by Serve (`config.scaling`).
"""

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class QueueGoodputAttainment:
    """Adds replicas when requests wait or SLO attainment is below its target; removes one when the
    others have room for the running requests and for the present goodput."""

    def __init__(self, max_batch: int, target_waiting: float, target_attainment: float) -> None:
        self._max_batch = max_batch
        self._target_waiting = target_waiting
        self._target_attainment = target_attainment

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        replicas = context.current_num_replicas
        signals = context.aggregated_metrics or {}
        if not signals or not replicas:
            return context.target_num_replicas, {}
        running = sum(signals.get("running", {}).values())
        waiting, goodput = signals.get("waiting", {}), signals.get("goodput", {})
        # The goodput of a replica on which requests wait is the highest that it can reach.
        saturated = [tokens for replica, tokens in goodput.items() if waiting.get(replica, 0) >= 1]
        capacity = max([context.policy_state.get("capacity", 0.0), *saturated])
        per_replica = self._max_batch + self._target_waiting
        wanted = math.ceil((running + sum(waiting.values())) / per_replica)
        if capacity:
            # Keep enough replicas for the present goodput, even if fewer batches would hold the
            # requests.
            wanted = max(wanted, min(replicas, math.ceil(sum(goodput.values()) / capacity)))
        attainments = signals.get("attainment", {}).values()
        if running and attainments and min(attainments) < self._target_attainment:
            wanted = max(wanted, replicas + 1)
        return max(1, wanted), {"capacity": capacity}

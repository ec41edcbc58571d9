"""How many replicas the traffic asks for: a policy of Serve's autoscaler.

Serve pickles this module by value and runs it in its controller, which may lack our root: it
imports nothing of ours. Bounds and delays are Serve's own (`config.scaling`).
"""

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class QueueGoodputAttainment:
    """Replicas are added for what waits and for broken promises, and removed when the others
    have room for what is running and for the tokens that it gains."""

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
        # What a replica gains while requests wait there is all that it can gain.
        full = [tokens for replica, tokens in goodput.items() if waiting.get(replica, 0) >= 1]
        capacity = max([context.policy_state.get("capacity", 0.0), *full])
        room = self._max_batch + self._target_waiting
        wanted = math.ceil((running + sum(waiting.values())) / room)
        if capacity:
            # No fewer than today's tokens need, even where fewer batches would hold the requests.
            wanted = max(wanted, min(replicas, math.ceil(sum(goodput.values()) / capacity)))
        kept = signals.get("attainment", {}).values()
        if running and kept and min(kept) < self._target_attainment:
            wanted = max(wanted, replicas + 1)
        return max(1, wanted), {"capacity": capacity}

"""The application of the tests that ask a replica over a Serve handle, as an ingress does."""

from collections.abc import Mapping
from typing import Any

from ray._private import state as ray_state
from ray.serve.handle import DeploymentResponseGenerator

from tests.deployments.serving import ARGS, read_to_end, replicas, request

SILENT_INGRESS_S = 4.0
UNREAD_TOKENS = 48
REPLICA_ARGS: Mapping[str, Any] = {
    **ARGS,
    "drafters": [{"name": "tiny", "model": "zoo/tiny"}, {"name": "ngram", "kind": "ngram"}],
    "limits": {
        "max_batch": 4,
        "max_waiting": 2,
        "unread_tokens": UNREAD_TOKENS,
        "stalled_s": 2 * SILENT_INGRESS_S,
        "silent_ingress_s": SILENT_INGRESS_S,
    },
}


def begin(name: str, **changes: Any) -> DeploymentResponseGenerator:
    return replicas().options(stream=True).stream.remote(request(name, **changes))


def read(name: str, **changes: Any) -> list[dict[str, Any]]:
    stream = begin(name, **changes)
    first = next(stream)
    refused = first["kind"] == "refused"
    return [first, *(stream if refused else read_to_end(stream, name, first["replica"]))]


def state() -> dict[str, Any]:
    return replicas().state.remote().result(timeout_s=10)


def replica_pid() -> int:
    (pid,) = (
        int(actor["Pid"])
        for actor in ray_state.actors(actor_state_name="ALIVE").values()
        if actor["ActorClassName"] == "ServeReplica:spindle:Replica"
    )
    return pid

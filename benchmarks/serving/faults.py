"""The deployments into which the chaos benchmark injects faults, and the faults."""

import re
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.serving.app import APP, Actor, App, small_args

NODE_CPUS = 2


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    victim: re.Pattern[str]
    """Matches the actor's name or class."""
    node: bool = False
    """Whether the victim's whole node is removed."""
    rank: bool = False
    """Whether only one of the target's ranks is killed, a child process of the victim."""
    replicas: int = 2
    """Those of the deployment that it needs."""
    hangs: bool = False
    """Whether the victim is stopped, so that it is alive and does not answer."""

    def matches(self, actor: Actor) -> bool:
        return _matches(self.victim, actor)

    def setting(self, backend: str) -> "Setting":
        """The deployment that it needs: only vLLM has ranks."""
        ranks, backend = (2, "vllm") if self.rank else (1, backend)
        return Setting(ranks, backend, self.replicas)


def _matches(pattern: re.Pattern[str], actor: Actor) -> bool:
    return bool(pattern.search(actor.name) or pattern.search(actor.class_name))


REPLICA = re.compile(r"^SERVE_REPLICA::spindle#Replica#")
ROUTER = re.compile(r"Router")
FAULTS = (
    Fault("drafter", re.compile(r"^spindle:.*:tiny:")),
    Fault("verifier", re.compile(r"^spindle:.*:verifier:")),
    Fault("router", ROUTER),
    Fault("replica", REPLICA),
    Fault("node", REPLICA, node=True),
    Fault("tp_rank", re.compile(r"^spindle:.*:verifier:"), rank=True, replicas=1),
    # Where there is one replica only, streams wait for its successor.
    Fault("only_replica", REPLICA, replicas=1),
)


HANGS = (
    Fault("hung_drafter", re.compile(r"^spindle:.*:tiny:"), hangs=True),
    Fault("hung_verifier", re.compile(r"^spindle:.*:verifier:"), hangs=True),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """The deployment into which faults are injected."""

    ranks: int
    backend: str
    replicas: int

    def args(self) -> dict[str, Any]:
        args = small_args()
        args["target"] |= {
            "backend": self.backend,
            "tensor_parallel": self.ranks,
            # So many that each replica takes a worker node of its own (see serving/app.py).
            "cpus": NODE_CPUS / 2,
            "kv_tokens": 16_384,
        }
        if self.backend == "vllm":  # without compilation it recovers in a third of the time
            args["target"]["engine_args"] = {"enforce_eager": True}
        # The default policies might not draft at all for so small a target.
        args["policies"] = {"selection": {"name": "lbss"}, "speculation": {"name": "fixed"}}
        # Room for all streams and a few more requests on one replica.
        args["limits"] = {"max_batch": 32}
        args["scaling"] = {"min_replicas": self.replicas, "max_replicas": self.replicas}
        return args

    def is_up(self, app: App) -> bool:
        """Whether all replicas, their hosts and the router are running."""
        actors = app.actors()
        hosts = sum(actor.name.startswith(f"{APP}:") for actor in actors)
        drafters = 2
        return (
            hosts == self.replicas * (drafters + 1)
            and app.replica_states() == {"RUNNING": self.replicas}
            and any(_matches(ROUTER, actor) for actor in actors)
            and _healthy(app.url)
        )


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False

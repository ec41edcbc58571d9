"""What the application of these modules is on each backend."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cluster.built_in_models import TARGET, model_path
from tests.adapters import write_adapter
from tests.deployments.serving import ARGS, VLLM_TARGET

GRPC_PORT = 9161
ADAPTER = "adapter"
"""Served beside the target on vLLM."""
KEYS = {"alpha": "key-of-alpha", "beta": "key-of-beta"}
OPERATOR_KEY = "key-of-operator"
ADMITTED = 64
ALIKE: Mapping[str, Any] = {
    **ARGS,
    "drafters": [
        {"name": "tiny", "model": "zoo/tiny", "placement": "inline"},
        {"name": "suffix", "kind": "suffix"},
    ],
    "api_keys": {**KEYS, "tenant": "env:KEY_OF_TENANT", "operator": OPERATOR_KEY},
    "operators": ["operator"],
    "grpc": {"port": GRPC_PORT},
    # The planner drafts by the time that forwards take, on which an attack's counts would depend.
    "policies": {"speculation": {"name": "fixed"}},
    "limits": {
        "max_batch": 8,
        "max_waiting": ADMITTED - 8,
        "max_choices": 4,
        "client_share": 1.0,
        # vLLM takes longer to come back than a request may wait by default.
        "recovery_s": 120,
    },
}
APPLICATIONS: Mapping[str, Mapping[str, Any]] = {
    "native": ALIKE,
    "vllm": {
        **ALIKE,
        "target": VLLM_TARGET,
        # In a process of its own, which a test kills.
        "drafters": [{"name": "tiny", "model": "zoo/tiny"}, {"name": "suffix", "kind": "suffix"}],
    },
}


@cache
def adapter() -> Path:
    return write_adapter(Path(mkdtemp()) / ADAPTER, model_path(TARGET), seed=0)


def application_on(backend: str) -> Mapping[str, Any]:
    args = APPLICATIONS[backend]
    if backend != "vllm":
        return args
    return {**args, "target": {**args["target"], "lora_modules": {ADAPTER: str(adapter())}}}

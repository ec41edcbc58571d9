"""What processes do not import: each costs seconds of their start, and of that of what replaces
them."""

import subprocess
import sys

import pytest

CHECK = """
import cluster.check
from cluster.config import AppConfig
AppConfig.model_validate({'target': {'inflate_to': 90_000_000}})
"""
REPLICA = "import deployments.replica.hosts, deployments.replica.service"
LOADING = """
import actors.hosts.workers, torch
from cluster.built_in_models import model_path
from engine.checkpoint import load_stock
load_stock(model_path("tiny"), torch.float32)
"""


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        (CHECK, {"torch", "ray", "transformers"}),
        (REPLICA, {"torch", "transformers", "scipy.optimize"}),
        (LOADING, {"sklearn", "scipy.optimize"}),
    ],
    ids=["a check", "a replica", "loading a model"],
)
def test_what_is_not_needed_is_not_imported(program: str, unused: set[str]) -> None:
    program += f"\nimport sys; print({unused} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "set()", ran.stderr

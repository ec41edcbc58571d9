"""What a process that loads a model does not import."""

import subprocess
import sys

PROGRAM = """
import sys
import actors.hosts.workers
import torch
from cluster.built_in_models import model_path
from engine.checkpoint import load_stock

model = load_stock(model_path("tiny"), torch.float32)
for unused in ("sklearn", "scipy.optimize"):
    assert unused not in sys.modules, unused
"""


def test_loading_a_model_imports_nothing_that_only_other_models_need() -> None:
    """Each costs a second of a core in each of a replica's actors, when one is replaced as well."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

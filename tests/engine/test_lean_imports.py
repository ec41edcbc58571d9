"""What a process that loads a model does not import."""

import subprocess
import sys

PROGRAM = """
import sys
import actors.hosts.workers
import torch
from cluster.built_in_models import model_path
from engine.model import load_stock

model = load_stock(model_path("tiny"), torch.float32)
COMPILERS = "torch._inductor", "torch._dynamo"
for unused in ("sklearn", "scipy.optimize", "torch.distributed.tensor", *COMPILERS):
    assert unused not in sys.modules, unused

import torch.nn as nn
import torch._dynamo

compiled = torch.compile(nn.Linear(2, 3), backend="eager")
assert compiled(torch.ones(2)).shape == (3,), "the real one can be used later"
assert "torch._dynamo.convert_frame" in sys.modules
"""


def test_loading_a_model_imports_no_compiler_and_leaves_it_to_be_used_later() -> None:
    """Each costs a second of a core in each of a replica's actors, when one is replaced as well."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

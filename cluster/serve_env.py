"""Sets what cluster/serve.env has, but for what the environment says otherwise: spindle.pth runs it
before `serve run` imports Ray."""

import os
from pathlib import Path

os.environ.setdefault("PYTHONPATH", os.getcwd())
for line in Path("cluster/serve.env").read_text().splitlines():
    if not line.startswith("#"):
        os.environ.setdefault(*line.split("=", 1))

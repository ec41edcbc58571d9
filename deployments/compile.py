"""`python -m deployments.compile` compiles all loops once, so that the first start is faster;
`make` runs it.

Generates a few tokens with the built-in models in this process, as a replica would, while a second
process compiles the policies. Loops compiled earlier are read from the cache
(cluster/numba_internals.py).
"""

import asyncio
import subprocess
import sys

import torch

from actors.hosts.fleet import start_fleet
from actors.hosts.specs import DrafterSpec, TargetSpec
from cluster.built_in_models import TARGET, model_path
from cluster.cache import cache_dir
from cluster.config import AppConfig
from cluster.config.drafter_kinds import LOOKUPS
from deployments.replica.service import Service
from engine.cpu.prepack import fast_dtype

_KV_TOKENS = 4096
_DRAFTERS = (
    DrafterSpec("tiny", checkpoint=model_path("tiny")),
    *(DrafterSpec(kind, kind=kind) for kind in LOOKUPS),
)


def main() -> None:
    print("Compiling loops for this processor, some two minutes the first time ...", flush=True)
    policies = [sys.executable, "-c", "import cluster, policies.precompile as w; w.warm_up()"]
    with subprocess.Popen(policies) as compiling:
        for dtype in {torch.float32, fast_dtype("cpu")}:
            asyncio.run(_serve(dtype))
    if compiling.returncode:
        raise SystemExit(compiling.returncode)


async def _serve(dtype: torch.dtype) -> None:
    """Serves one warm-up per dtype, since the kernels depend on the target's dtype."""
    target = TargetSpec(model_path(TARGET), dtype, kv_tokens=_KV_TOKENS)
    fleet = await start_fleet(target, _DRAFTERS, cache_dir() / "profiles", measure_s=0.0)
    service = Service(AppConfig(), fleet)
    await service.warm_up()
    await service.coordinator.close()
    await fleet.close()


if __name__ == "__main__":
    main()

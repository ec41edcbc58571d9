"""`python -m deployments.compile` compiles all loops once, so that the first start is faster;
`make` runs it.

Generates a few tokens with the built-in models in this process, as a replica would, while a second
process compiles the policies. Loops compiled earlier are read from the cache
(cluster/numba_internals.py).
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch

from actors.hosts.fleet import start_fleet
from actors.hosts.specs import DrafterSpec, TargetSpec
from cluster.built_in_models import TARGET, has_smollm2, model_path, smollm2_path
from cluster.cache import cache_dir
from cluster.config import AppConfig
from cluster.config.drafter_kinds import LOOKUPS
from deployments.replica.service import Service
from engine.cpu.prepack import fast_dtype

_KV_TOKENS = 4096
_LOOKUPS = tuple(DrafterSpec(kind, kind=kind) for kind in LOOKUPS)
_BUILT_IN = (DrafterSpec("tiny", checkpoint=model_path("tiny")), *_LOOKUPS)


def main() -> None:
    print("Compiling loops for this processor, some two minutes the first time ...", flush=True)
    policies = [sys.executable, "-c", "import cluster, policies.precompile as w; w.warm_up()"]
    with subprocess.Popen(policies) as compiling:
        for target, drafters in _models():
            asyncio.run(_serve(target, drafters))
    if compiling.returncode:
        raise SystemExit(compiling.returncode)


def _models() -> Iterator[tuple[TargetSpec, Sequence[DrafterSpec]]]:
    """One of each form of weights that the shipped configs serve on a CPU."""
    if has_smollm2():
        target = TargetSpec(smollm2_path(), None, kv_tokens=_KV_TOKENS, quantize="auto")
        yield target, _LOOKUPS
    for dtype in {torch.float32, fast_dtype("cpu")}:
        yield TargetSpec(model_path(TARGET), dtype, kv_tokens=_KV_TOKENS), _BUILT_IN


async def _serve(target: TargetSpec, drafters: Sequence[DrafterSpec]) -> None:
    """Serves one warm-up."""
    fleet = await start_fleet(target, drafters, cache_dir() / "profiles", measure_s=0.0)
    service = Service(AppConfig(), fleet)
    await service.warm_up()
    await service.coordinator.close()
    await fleet.close()


if __name__ == "__main__":
    main()

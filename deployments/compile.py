"""`python -m deployments.compile` fetches the default model and compiles the loops that serve it,
so that the first start is faster; `make` runs it. `--built-in`: those of the built-in models
instead, which tests serve.

This process serves a few tokens as a replica would, while a second one compiles what needs no
model. Loops compiled earlier are read from the cache (cluster/numba_internals.py).
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence

import torch

from actors.hosts.fleet import start_fleet
from actors.hosts.specs import DrafterSpec, TargetSpec
from cluster.built_in_models import TARGET, model_path, smollm2_path
from cluster.cache import cache_dir
from cluster.config import AppConfig
from cluster.config.drafter_kinds import LOOKUPS
from cluster.fetch import main as fetch
from deployments.replica.service import Service
from engine.cpu.prepack import fast_dtype

_KV_TOKENS = 4096
_LOOKUPS = tuple(DrafterSpec(kind, kind=kind) for kind in LOOKUPS)
_BUILT_IN = (DrafterSpec("tiny", checkpoint=model_path("tiny")), *_LOOKUPS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deployments.compile")
    parser.add_argument("--built-in", action="store_true")
    built_in: bool = parser.parse_args().built_in
    print("Compiling loops for this processor, about a minute the first time ...", flush=True)
    with subprocess.Popen([sys.executable, "-m", "engine.precompile"]) as compiling:
        if built_in or fetch([]):
            for dtype in {torch.float32, fast_dtype("cpu")} if built_in else {fast_dtype("cpu")}:
                target = TargetSpec(model_path(TARGET), dtype, kv_tokens=_KV_TOKENS)
                asyncio.run(_serve(target, _BUILT_IN))
        else:
            target = TargetSpec(smollm2_path(), None, kv_tokens=_KV_TOKENS, quantize="auto")
            asyncio.run(_serve(target, _LOOKUPS))
    if compiling.returncode:
        raise SystemExit(compiling.returncode)


async def _serve(target: TargetSpec, drafters: Sequence[DrafterSpec]) -> None:
    """Serves one warm-up."""
    fleet = await start_fleet(target, drafters, cache_dir() / "profiles", measure_s=0.0)
    service = Service(AppConfig(), fleet)
    await service.warm_up()
    await service.coordinator.close()
    await fleet.close()


if __name__ == "__main__":
    main()

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
from collections.abc import Mapping, Sequence

from actors.hosts.fleet import start_fleet
from cluster.built_in_models import SMOLLM2
from cluster.cache import cache_dir
from cluster.config import AppConfig, DrafterConfig, TargetConfig
from cluster.config.drafter_kinds import LOOKUPS
from cluster.fetch import main as fetch
from deployments.replica.service import Service
from engine.cpu.prepack import fast_dtype

_KV_TOKENS = 4096
_LOOKUPS = tuple(DrafterConfig(name=kind, kind=kind) for kind in LOOKUPS)
_BUILT_IN = (DrafterConfig(name="tiny", model="zoo/tiny", placement="inline"), *_LOOKUPS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deployments.compile")
    parser.add_argument("--built-in", action="store_true")
    built_in: bool = parser.parse_args().built_in
    print("Compiling loops for this processor, about a minute the first time ...", flush=True)
    with subprocess.Popen([sys.executable, "-m", "engine.precompile"]) as compiling:
        if built_in or fetch([]):
            fast = str(fast_dtype("cpu")).removeprefix("torch.")
            for dtype in {"float32", fast} if built_in else {fast}:
                asyncio.run(_serve({"model": "zoo/target", "dtype": dtype}, _BUILT_IN))
        else:
            asyncio.run(_serve({"model": SMOLLM2}, _LOOKUPS))
    if compiling.returncode:
        raise SystemExit(compiling.returncode)


async def _serve(model: Mapping[str, str], drafters: Sequence[DrafterConfig]) -> None:
    """Serves one warm-up."""
    fields = {**model, "kv_tokens": _KV_TOKENS, "placement": "inline"}
    target = TargetConfig.model_validate(fields)
    fleet = await start_fleet(target, drafters, cache_dir() / "profiles", measure_s=0.0)
    service = Service(AppConfig(), fleet)
    await service.warm_up()
    await service.coordinator.close()
    await fleet.close()


if __name__ == "__main__":
    main()

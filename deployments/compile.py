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

from actors.hosts.fleet import start_fleet
from cluster.built_in_models import SMOLLM2, has_smollm2
from cluster.cache import cache_dir
from cluster.config import AppConfig, DrafterConfig, TargetConfig
from cluster.config.drafter_kinds import LOOKUPS
from deployments.replica.service import Service
from engine.cpu.prepack import fast_dtype

_KV_TOKENS = 4096
_LOOKUPS = tuple(DrafterConfig(name=kind, kind=kind) for kind in LOOKUPS)
_BUILT_IN = (DrafterConfig(name="tiny", model="zoo/tiny", placement="inline"), *_LOOKUPS)


def main() -> None:
    print("Compiling loops for this processor, some two minutes the first time ...", flush=True)
    policies = [sys.executable, "-c", "import cluster, policies.precompile as w; w.warm_up()"]
    with subprocess.Popen(policies) as compiling:
        for target, drafters in _models():
            asyncio.run(_serve(target, drafters))
    if compiling.returncode:
        raise SystemExit(compiling.returncode)


def _models() -> Iterator[tuple[TargetConfig, Sequence[DrafterConfig]]]:
    """One of each form of weights that the shipped configs serve on a CPU."""
    if has_smollm2():
        yield TargetConfig(model=SMOLLM2, kv_tokens=_KV_TOKENS, placement="inline"), _LOOKUPS
    for dtype in {"float32", str(fast_dtype("cpu")).removeprefix("torch.")}:
        target = {"model": "zoo/target", "dtype": dtype, "kv_tokens": _KV_TOKENS}
        yield TargetConfig.model_validate(target | {"placement": "inline"}), _BUILT_IN


async def _serve(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    """Serves one warm-up."""
    fleet = await start_fleet(target, drafters, cache_dir() / "profiles", measure_s=0.0)
    service = Service(AppConfig(), fleet)
    await service.warm_up()
    await service.coordinator.close()
    await fleet.close()


if __name__ == "__main__":
    main()

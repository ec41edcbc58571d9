"""Who serves the real prompts: vLLM's methods, Spindle on either backend."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.real.contest import MakeServer
from benchmarks.real.served_vllm import ServedVllm
from benchmarks.real.spindle import Dtype, Spindle
from cluster.check import read
from cluster.config.drafter_kinds import LOOKUPS

KV_TOKENS = 16_384
PLAIN = "vllm"
HEAD = "eagle3"
COPY = "quantized"
VLLM_METHODS: Mapping[str, Mapping[str, Any]] = {
    "vllm_ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "vllm_suffix": {"method": "suffix"},
    "vllm_eagle3": {"method": HEAD},
}
VLLM = {
    f"{name}_k{k}": {**method, "num_speculative_tokens": k}
    for name, method in VLLM_METHODS.items()
    for k in (3, 5)
}
CONFIGS = {"native": Path("cluster.yaml"), "vllm": Path("cluster/vllm.yaml")}
FLEETS: Mapping[str, Sequence[str]] = {
    "_plain": (),
    **{f"_{name}": (name,) for name in (*LOOKUPS, HEAD, COPY)},
    "": (*LOOKUPS, HEAD),
}
"""By the ending of a contender's name."""
SPINDLE = {
    f"spindle_{backend}{ending}": (backend, fleet)
    for backend in CONFIGS
    for ending, fleet in FLEETS.items()
}
CONTENDERS = (*VLLM, *SPINDLE)


def servers(
    model: str, checkpoint: Path, head: Path | None, vllm_head: Path | None, dtype: Dtype
) -> dict[str, MakeServer]:
    """All contenders, and plain vLLM; those that need a head only if there is one. `vllm_head`: the
    same head, as vLLM reads it."""
    vllm = partial(ServedVllm, str(checkpoint), dtype=dtype, kv_tokens=KV_TOKENS)
    made: dict[str, MakeServer] = {PLAIN: partial(vllm, speculation=None)}
    for name, method in VLLM.items():
        own = {**method, "model": str(vllm_head)} if method["method"] == HEAD else method
        made[name] = partial(vllm, speculation=own)
    for name, (backend, fleet) in SPINDLE.items():
        drafters = [drafter for drafter in fleet if head is not None or drafter != HEAD]
        made[name] = partial(Spindle, spindle_args(backend, drafters, model, head, dtype))
    return {name: make for name, make in made.items() if head or HEAD not in name}


def spindle_args(
    backend: str, drafters: Sequence[str], model: str, head: Path | None, dtype: Dtype
) -> dict[str, Any]:
    """Those of the shipped config for the backend, with these drafters and vLLM's float weights."""
    (application,) = read(CONFIGS[backend])
    own = {"model": model, "dtype": dtype, "kv_tokens": KV_TOKENS, "quantize": "none"}
    target = {**application.args["target"], **own}
    target.pop("inflate_to", None)
    described: list[dict[str, Any]] = [
        _head(head) if head is not None and name == HEAD else {"name": name, "kind": name}
        for name in drafters
    ]
    return {**application.args, "target": target, "drafters": described}


def _head(path: Path) -> dict[str, Any]:
    return {"name": HEAD, "kind": HEAD, "model": str(path.resolve()), "placement": "inline"}

"""A target and its drafters inside one process: loaded, profiled and reachable as hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM

from actors.inline import DirectDrafter, ThreadDrafter, ThreadVerifier
from actors.knowledge import Costs
from actors.settings import Lane
from engine.draft_profile import profile_drafter
from engine.drafters.lookup import NgramDrafter
from engine.drafters.model import ModelDrafter, make_runner
from engine.drafters.suffix import SuffixDrafter
from engine.model import PackedModel
from engine.profiler import profile
from engine.protocol import Drafter
from engine.verifiers.native import NativeVerifier
from policies.cost import CostModel
from policies.request import LaneView

_LOOKUP_CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class TargetSpec:
    checkpoint: Path
    dtype: torch.dtype
    kv_tokens: int
    swap_tokens: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    name: str
    kind: Literal["model", "ngram", "suffix"] = "model"
    checkpoint: Path | None = None
    """Of a model."""
    capacity: int = 16
    """Requests that the lane serves at once."""
    kv_tokens: int = 32_768


@dataclass(frozen=True, slots=True)
class Fleet:
    verifier: ThreadVerifier
    lanes: list[Lane]
    costs: Costs


def load(target: TargetSpec, drafters: Sequence[DrafterSpec], cache_dir: Path) -> Fleet:
    """Blocks while it loads and measures; do it before anything is served. Profiles of the
    target are kept in `cache_dir`."""
    model = PackedModel.load(
        target.checkpoint,
        dtype=target.dtype,
        device=target.device,
        kv_tokens=target.kv_tokens,
        swap_tokens=target.swap_tokens,
    )
    measured = profile(model, "native", cache_dir)
    lanes = []
    draft_costs: dict[str, CostModel] = {}
    for spec in drafters:
        lane, cost = _load_lane(spec, model.vocab_size)
        lanes.append(lane)
        if cost is not None:
            draft_costs[spec.name] = cost
    budget = measured.token_budget
    costs = Costs(measured.roofline, draft_costs, verify_budget=budget, draft_budget=budget)
    return Fleet(ThreadVerifier(NativeVerifier(model)), lanes, costs)


def _load_lane(spec: DrafterSpec, vocab_size: int) -> tuple[Lane, CostModel | None]:
    if spec.kind != "model":
        lookup: Drafter = (
            NgramDrafter(spec.name) if spec.kind == "ngram" else SuffixDrafter(spec.name)
        )
        view = LaneView(spec.name, spec.kind, _LOOKUP_CAPACITY)
        return Lane(view, DirectDrafter(lookup), free=True), None
    if spec.checkpoint is None:
        raise ValueError(f"drafter {spec.name!r} of kind model needs a checkpoint")
    stock = AutoModelForCausalLM.from_pretrained(spec.checkpoint, dtype=torch.float32).eval()
    size = float(sum(weight.numel() for weight in stock.parameters()))
    runner = make_runner(stock, kv_tokens=spec.kv_tokens)
    drafter = ModelDrafter(spec.name, runner, target_vocab_size=vocab_size)
    cost = profile_drafter(drafter, vocab_size, runner.max_context)
    view = LaneView(
        spec.name,
        spec.name,
        spec.capacity,
        size=size,
        catch_up_s=cost.gamma,
    )
    return Lane(view, ThreadDrafter(drafter)), cost

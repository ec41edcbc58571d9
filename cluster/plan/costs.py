"""What forwards cost: by the table of GPUs, or measured here as a replica measures them."""

import asyncio
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.architecture import Architecture
from cluster.cache import cache_dir, digest, written_whole
from cluster.checkpoint_files import quantization
from cluster.checkpoints import architecture, eagle3_shape, weights_of_target
from cluster.config import DrafterConfig, TargetConfig
from cluster.plan.simulator.hardware import Gpu, Shape, roofline
from cluster.quantized_targets import weight_bits
from cluster.sources import header_folder, parameters_of
from engine.verifiers.vllm.environment import process_environment
from policies.cost import ForwardCost

_FORMAT = 2
"""Another number where other costs are kept than before."""
_MEASURE_S = 5.0
_BUDGET = 512


@dataclass(frozen=True, slots=True)
class ReplicaCosts:
    """The costs of a replica's models."""

    verify: ForwardCost
    budget: int
    """Tokens up to which a verification takes hardly longer."""
    draft: Mapping[str, tuple[ForwardCost, int]]
    """The cost and the budget of a draft step, by the drafter's name."""


def shape_of(model: str, width: float) -> Shape:
    """`width`: bytes of a weight."""
    folder = header_folder(model)
    own = architecture(folder)
    packed = quantization(folder) is not None  # several weights to a stored number
    count = None if packed else parameters_of(model)
    return Shape(
        count or own.parameters(),
        own.num_hidden_layers,
        own.hidden_size,
        own.num_key_value_heads * own.head_dim,
        width,
    )


def head_shape(head: str, target: Architecture) -> Shape:
    """The shape of an EAGLE-3 head; its embeddings are looked up, not multiplied."""
    folder = header_folder(head)
    own, head_own = architecture(folder), eagle3_shape(folder, target.num_hidden_layers)
    weights = (parameters_of(head) or own.layer_parameters()) + weights_of_target(
        folder, head_own.draft_vocab_size
    )
    embedded = own.vocab_size * own.hidden_size
    return Shape(weights - embedded, 1, own.hidden_size, own.num_key_value_heads * own.head_dim)


def width_of(model: str) -> float:
    """Bytes of a weight on a GPU."""
    bits = weight_bits(header_folder(model))
    return 2.0 if bits is None else bits / 8 * 1.06  # with scales


def by_rates(
    target: Shape,
    drafters: Mapping[str, tuple[Shape, Gpu]],
    gpu: Gpu,
    ranks: int,
) -> ReplicaCosts:
    """`drafters`: each with the GPU that it runs on."""
    verify = roofline(target, gpu, ranks)
    draft = {name: roofline(shape, own) for name, (shape, own) in drafters.items()}
    return ReplicaCosts(
        verify, _budget(verify), {name: (cost, _budget(cost)) for name, cost in draft.items()}
    )


def _budget(cost: ForwardCost) -> int:
    return max(1, min(_BUDGET, int(cost.knee)))


def measured(
    target: Mapping[str, Any], drafters: Sequence[Mapping[str, Any]], threads: int
) -> ReplicaCosts:
    """Loads the models into a process of their own, as an inline replica does, the first time and
    after a time beside other work. Raises ValueError if they cannot be loaded."""
    asked = json.dumps([target, drafters, threads])
    described = json.dumps([_FORMAT, asked, _machine(), _headers(target, drafters)])
    key = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
    file = cache_dir() / "profiles" / f"plan-{key}.json"
    if not file.is_file():
        own = process_environment() if target["backend"] == "vllm" else {}
        ran = subprocess.run(
            [sys.executable, "-m", "cluster.plan.costs"],
            input=asked,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            why = (ran.stderr.strip() or f"its process ended with {ran.returncode}").splitlines()[
                -1
            ]
            raise ValueError(f"{target['model']} on {target['backend']} cannot be loaded: {why}")
        answer = ran.stdout.splitlines()[-1]
        *_, disturbed = json.loads(answer)
        if not disturbed:
            with written_whole(file) as scratch:
                scratch.write_text(answer)
    else:
        answer = file.read_text()
    verify, budget, draft, _ = json.loads(answer)
    return ReplicaCosts(
        ForwardCost(*verify),
        budget,
        {name: (ForwardCost(*cost), own) for name, (cost, own) in draft.items()},
    )


def _machine() -> str:
    return f"{platform.processor()} {os.cpu_count()} {len(os.sched_getaffinity(0))}"


def _headers(target: Mapping[str, Any], drafters: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the models are, whatever their names hold by then."""
    named = [one["model"] for one in (target, *drafters) if one.get("model")]
    return [digest(header_folder(model) / "config.json") for model in named]


def _measure() -> None:
    """In a process of its own, asked and answered in JSON."""
    from actors.hosts.fleet import start_fleet  # models' libraries, which a table does not need
    from engine.cpu.threads import set_threads, waiting_meter
    from engine.profiler import MOST_WAITING

    target, drafters, threads = json.load(sys.stdin)
    waiting = waiting_meter()
    set_threads(threads)
    fleet = asyncio.run(
        start_fleet(
            TargetConfig.model_validate(target),
            [DrafterConfig.model_validate(drafter) for drafter in drafters],
            cache_dir() / "profiles",
            measure_s=_MEASURE_S,
        )
    )
    costs = fleet.costs
    draft = {
        lane: (cost.piecewise, costs.draft_budgets[lane]) for lane, cost in costs.draft.items()
    }
    answer = (costs.verify.piecewise, costs.verify_budget, draft, waiting() > MOST_WAITING)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # an engine's threads would keep it


if __name__ == "__main__":
    _measure()

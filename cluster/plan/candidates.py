"""The topologies that a plan compares: where the target runs, and what drafts for it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from cluster.architecture import Architecture
from cluster.checkpoint_files import quantization, weight_files
from cluster.checkpoints import architecture
from cluster.config import AppConfig, ValidationError, problems
from cluster.config.backends import BACKENDS
from cluster.config.serving import LimitsConfig
from cluster.fitting import missing
from cluster.plan.acceptance import Fleet, of_given
from cluster.plan.costs import ReplicaCosts, by_rates, head_shape, measured, shape_of, width_of
from cluster.plan.gpus import GPUS, NODE, Machines
from cluster.plan.simulator.acceptance import Acceptance
from cluster.plan.simulator.hardware import Gpu, Shape
from cluster.plan.simulator.run import Cluster, DrafterSpec
from cluster.plan.simulator.verifier import KvMemory
from cluster.sources import GGUF, header_folder
from policies.cost import SwitchCost

_OWN, _OWN_OF_DRAFTS = SwitchCost(0.4e-3, 15e-6), SwitchCost(1.0e-3, 40e-6)
"""What a round without and with drafts takes in the coordinator, lookups included
(`python -m benchmarks.coordinator`, lab/docs/plan.md)."""
_ACTOR_S = 0.3e-3
"""A call to an actor (`python -m benchmarks.serving.overhead`)."""
_USED = 0.9
"""Share of a GPU's memory for weights and KV."""
_MOST_KV, _LEAST_KV = 1 << 20, 4096
_DRAFTER_KV = 32_768
_HALF = 2
"""Bytes of a value on a GPU."""
_FORWARD = 2048
"""Tokens of a forward there."""
_LIMITS = LimitsConfig()


class Option(NamedTuple):
    """One topology of the whole cluster."""

    layout: str
    fleet: Fleet
    args: dict[str, Any]
    cluster: Cluster
    """The machines of one replica, as it is simulated."""
    replicas: int
    gpus: Mapping[str, int]
    """Those of all replicas."""

    @property
    def name(self) -> str:
        return f"{self.layout}: {self.fleet.label}"


class Refused(NamedTuple):
    layout: str
    fleet: Fleet
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """What all candidates have in common."""

    model: str
    machines: Machines
    clients: int
    """Requests at once, of all replicas."""
    slo_ms: float | None
    rounded: str | None
    """int8 or int4: what the target may be rounded to besides."""
    longest: int
    """The tokens of the longest request."""

    @property
    def shape(self) -> Architecture:
        return architecture(header_folder(self.model))


def candidates(planned: Planned, fleets: Sequence[Fleet]) -> Iterator[Option | Refused]:
    """All of them, those first that every other one is compared with."""
    for fleet in fleets:
        if planned.machines.gpus:
            yield from _on_gpus(planned, fleet)
        else:
            yield from _on_processors(planned, fleet)


def _on_gpus(planned: Planned, fleet: Fleet) -> Iterator[Option | Refused]:
    own = planned.shape
    for kind, count in planned.machines.gpus.items():
        ranks = 1
        while ranks <= min(count, NODE):
            if own.num_attention_heads % ranks == own.num_key_value_heads % ranks == 0:
                yield _on_gpu(planned, fleet, kind, ranks, count // ranks)
            ranks *= 2


def _on_gpu(
    planned: Planned, fleet: Fleet, kind: str, ranks: int, replicas: int
) -> Option | Refused:
    layout = f"{replicas} replica{'s' if replicas > 1 else ''} of {ranks} {kind}"
    gpu, own = GPUS[kind].gpu, planned.shape
    target = shape_of(planned.model, width_of(planned.model))
    given, share, placed, draft_gpu = fleet.given, 0.0, dict[str, Any](), gpu
    drafting: Shape | None = None
    used = {kind: replicas * ranks}
    head = given is not None and given.kind == "eagle3"
    if given is not None:
        model = str(given.model)
        drafting = head_shape(model, own) if head else shape_of(model, _HALF)
        other = next(
            (one for one, n in planned.machines.gpus.items() if one != kind and n >= replicas), None
        )
        if other is not None and not head:
            draft_gpu = GPUS[other].gpu
            each = min(2, planned.machines.gpus[other] // replicas)
            placed = {"gpus": 1, "accelerator": other, "instances": each}
            used[other] = replicas * each
        elif ranks == 1:
            share = _share(drafting, gpu, own, head)
            placed = {"gpus": share}
        else:
            return Refused(layout, fleet, f"it finds no GPU beside the target's {ranks} ranks")
    room = _USED * gpu.memory * ranks * (1 - share) - target.weight_bytes
    if head and drafting is not None:
        rows = (_USED * gpu.memory * share - drafting.weight_bytes) / drafting.kv_bytes
        room = min(room, rows * own.kv_values() * _HALF)
    tokens = int(min(_MOST_KV, room / (own.kv_values() * _HALF))) // 64 * 64
    least = max(_LEAST_KV, planned.longest)
    if tokens < least:
        return Refused(
            layout,
            fleet,
            f"weights of {target.weight_bytes / 1e9:.1f} GB leave no room for KV of {least:,} "
            f"tokens on {ranks} x {gpu.memory / 1e9:.0f} GB",
        )
    whole = tokens >= own.max_position_embeddings
    quantized = quantization(header_folder(planned.model)) is not None
    backend = "native" if ranks == 1 and whole and not quantized else "vllm"
    args: dict[str, Any] = {
        "model": planned.model,
        "backend": backend,
        "gpus": round(1 - share, 2) if share else 1,
        "kv_tokens": tokens,
    }
    args |= {} if quantized else {"dtype": "bfloat16"}
    args |= {"tensor_parallel": ranks} if ranks > 1 else {}
    if backend == "vllm":
        args["engine_args"] = {"max_num_batched_tokens": _forward(planned, replicas)}
        args["engine_args"] |= {} if whole else {"max_model_len": tokens}
    args |= {"accelerator": kind} if len(planned.machines.gpus) > 1 else {}
    drafts = {given.name: (drafting, draft_gpu)} if given and drafting else {}
    return _checked(
        planned,
        Placed(layout, fleet, args, placed, replicas, used),
        lambda _config: by_rates(target, drafts, gpu, ranks),
    )


def _share(drafting: Shape, gpu: Gpu, own: Architecture, head: bool) -> float:
    """Its share of the target's GPU, in twentieths; a head keeps as many tokens as the target."""
    if head:
        wanted = drafting.weight_bytes / gpu.memory + drafting.kv_bytes / (
            own.kv_values() * _HALF + drafting.kv_bytes
        )
    else:
        wanted = (drafting.weight_bytes + _DRAFTER_KV * drafting.kv_bytes) / gpu.memory
    return round(min(0.9, -(-wanted // (0.05 * _USED)) * 0.05), 2)


def _on_processors(planned: Planned, fleet: Fleet) -> Iterator[Option | Refused]:
    cores = int(planned.machines.nodes[0]["CPU"])
    tokens = max(16_384, planned.shape.max_position_embeddings)
    target = {"model": planned.model, "dtype": "float32", "kv_tokens": tokens}
    native = target | {"backend": "native", "placement": "inline"}
    variants = {"native": native}
    if AppConfig.model_validate({"target": native}).target.runs_quantized:
        variants = {
            "native, as in the file": native,
            "native, float32": native | {"quantize": "none"},
        }
    if planned.rounded:
        variants[f"native, {planned.rounded}"] = native | {"quantize": planned.rounded}
    if find_spec("vllm"):
        variants["vllm, float32"] = target | {"backend": "vllm", "threads": cores}
    for layout, args in variants.items():
        own = Placed(layout, fleet, args, {"placement": "inline"}, 1, {}, cores)
        yield _checked(planned, own, lambda config: _costs_here(planned, config, cores))


def _costs_here(planned: Planned, config: AppConfig, threads: int) -> ReplicaCosts:
    if not planned.model.endswith(GGUF) and not weight_files(header_folder(planned.model)):
        raise ValueError(
            f"the weights of {planned.model} are not here, so nothing can be measured: fetch them "
            f"with `python -m cluster.fetch {planned.model}`, or describe GPUs with --gpus"
        )
    inline = {"placement": "inline"}
    target = config.target.model_dump(exclude_unset=True, exclude={"threads"}) | inline
    costs = measured(target, [], threads)
    models = [one.model_dump(exclude_unset=True) for one in config.drafters if not one.is_lookup]
    if not models:
        return costs
    if config.target.backend != "native":  # which takes a minute to load and costs drafters nothing
        target |= {"backend": "native", "quantize": "none"}
    return replace(costs, draft=measured(target, models, threads).draft)


class Placed(NamedTuple):
    """A candidate before it is checked."""

    layout: str
    fleet: Fleet
    target: dict[str, Any]
    drafter: dict[str, Any]
    """Where the fleet's model runs."""
    replicas: int
    gpus: Mapping[str, int]
    threads: int = 1


def _checked(
    planned: Planned, placed: Placed, costs_of: Callable[[AppConfig], ReplicaCosts]
) -> Option | Refused:
    """As a check of the config and of its resources sees it."""
    args = _application(planned, placed)
    try:
        config = AppConfig.model_validate(args)
        lacking = missing(config, planned.machines.nodes)
        if lacking:
            return Refused(placed.layout, placed.fleet, lacking[0])
        costs = costs_of(config)
    except ValidationError as error:
        return Refused(placed.layout, placed.fleet, next(iter(problems(error))))
    except ValueError as error:
        return Refused(placed.layout, placed.fleet, str(error))
    specs, models = [], dict(placed.fleet.lookups)
    if models:
        # Lookups read the same text and mostly agree, so the better one stands for all.
        best = max(models, key=lambda name: models[name].acceptance)
        specs.append(DrafterSpec(best, best, None))
    for drafter in config.drafters:
        if drafter.is_lookup:
            continue
        cost, budget = costs.draft[drafter.name]
        if placed.fleet.given is not None:
            models[drafter.name] = of_given(placed.fleet.given, planned.model)
        apart = drafter.is_apart_from(config.target)
        specs += [
            DrafterSpec(lane, drafter.name, cost, drafter.max_batch, budget, apart=apart)
            for lane in drafter.lanes
        ]
    backend = BACKENDS[config.target.backend]
    cluster = Cluster(
        costs.verify,
        KvMemory(config.target.kv_tokens, None),
        specs,
        Acceptance({("", name): model for name, model in models.items()}),
        costs.budget,
        config.limits.forward_tokens,
        backend.trees,
        transport_s=0.0 if config.target.placement == "inline" else _ACTOR_S,
        own_s=_OWN_OF_DRAFTS if specs else _OWN,
    )
    return Option(placed.layout, placed.fleet, args, cluster, placed.replicas, placed.gpus)


def _application(planned: Planned, placed: Placed) -> dict[str, Any]:
    """The arguments of the config."""
    given = placed.fleet.given
    drafters: list[dict[str, Any]] = [{"name": n, "kind": n} for n in placed.fleet.lookups]
    if given is not None:
        named = {"name": given.name, "kind": given.kind}
        named |= {"model": given.model} if given.model else {}
        drafters.append({**named, **placed.drafter})
    args: dict[str, Any] = {"target": placed.target, "drafters": drafters}
    args["threads"] = placed.threads
    batch = _batch(planned, placed.replicas)
    if placed.gpus or batch > _LIMITS.max_batch:
        forward = _forward(planned, placed.replicas)
        limits = {"max_batch": batch, "max_waiting": 4 * batch, "forward_tokens": forward}
        args["limits"] = limits
    if placed.replicas > 1:
        args["scaling"] = {"min_replicas": placed.replicas, "max_replicas": placed.replicas}
    if planned.slo_ms is not None:
        args["slo_classes"] = {"planned": {"tpot_ms": planned.slo_ms}}
    return args


def _batch(planned: Planned, replicas: int) -> int:
    """Requests that run at once in one replica."""
    return max(_LIMITS.max_batch, -(-planned.clients // replicas))


def _forward(planned: Planned, replicas: int) -> int:
    return max(_FORWARD if planned.machines.gpus else 512, _batch(planned, replicas))

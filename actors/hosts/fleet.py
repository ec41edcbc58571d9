"""The fleet of a replica: its target and drafters, loaded, measured and reachable as hosts.

All are measured one after the other, after the last load. Drafters in actors that another replica
has loaded before are not waited for: their lanes join when they are loaded, as after a loss
(actors/coordinator/lanes.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from actors.coordinator.estimates import Costs
from actors.coordinator.settings import Lane, Limits
from actors.hosts.direct import DirectDrafter, make_lookup
from actors.hosts.facts import (
    DrafterFacts,
    Facts,
    costs_of_target,
    drafter_key,
    numbers_of_target,
    target_key,
)
from actors.hosts.models import Caller, ModelDrafter, ModelVerifier
from actors.hosts.protocol import VerifierHost
from actors.hosts.spawn import Group, VerifierLauncher
from actors.hosts.specs import DrafterSpec, TargetSpec
from actors.hosts.starting import LOG_PROGRESS, Progress, Start, check_tokenizers, start_all
from actors.hosts.supervision import Supervised
from cluster.checkpoints import architecture
from engine.grammar.compiler import Grammars
from policies.request import LaneView

_DEFAULT_LIMITS = Limits()
_LOOKUP_CAPACITY = 4096
_MEASURING = "measuring what forwards cost on this machine, or reading what was measured before"

_NOTHING: Facts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Fleet:
    verifier: VerifierHost
    lanes: list[Lane]
    costs: Costs
    closers: Sequence[Callable[[], None]]
    """One for each host that runs in an actor or on a thread."""
    grammars: Grammars | None
    """Compiles output grammars in this process; None: the target has no tokenizer."""
    load_vocabulary: Callable[[], Awaitable[None]]
    """Begins to load, in the verifier, what its first output grammar needs."""
    facts: Facts
    """About the target, and all drafters but lookups."""

    async def close(self) -> None:
        """Kills all actors; threads end after their present call."""
        for close in self.closers:
            close()


def load(target: TargetSpec, drafters: Sequence[DrafterSpec], cache_dir: Path) -> Fleet:
    """`start_fleet` for programs without an event loop and fleets without actors."""
    return asyncio.run(start_fleet(target, drafters, cache_dir))


async def start_fleet(
    target: TargetSpec,
    drafters: Sequence[DrafterSpec],
    cache_dir: Path,
    group: Group | None = None,
    limits: Limits = _DEFAULT_LIMITS,
    progress: Progress = LOG_PROGRESS,
    measure_s: float = inf,
    known: Facts = _NOTHING,
) -> Fleet:
    """`group`: creates the actors; not needed without any. `cache_dir`: for profiles; `measure_s`:
    the time that measuring one model may take. `known`: models that others have measured; drafters
    among them are not waited for. Raises HostLost or the error of a model (UnsupportedModel,
    IncompatibleDrafter, ...), after closing all hosts."""
    keys = {spec.name: drafter_key(target.checkpoint, spec) for spec in drafters}
    later = {
        spec.name for spec in drafters if spec.placement == "actor" and keys[spec.name] in known
    }
    new = [spec for spec in drafters if spec.name not in later]
    await asyncio.to_thread(check_tokenizers, target.checkpoint, new)
    closers: list[Callable[[], None]] = []
    verifier = _verifier(target, group, limits, closers)
    models = _models(target, drafters, group, limits)
    awaited = [model for model in models if model.spec.name not in later]
    closers += [verifier.close, *(model.host.close for model in models)]
    try:
        progress(_loading_message(target, awaited, later))
        starts = [Start("target", target.placement, verifier.start)]
        starts += [Start(one.lane, one.spec.placement, one.host.start) for one in awaited]
        await start_all(starts, progress)
        key = target_key(target)
        if key in known:
            verify = costs_of_target(known[key])
        else:
            limit = f": up to {measure_s:g} s a model" if isfinite(measure_s) else ""
            progress(_MEASURING + limit)
            verify = await verifier.measure(cache_dir, measure_s)
        verifier.cost = verify.verify
        facts = await _measure_drafters(awaited, cache_dir, measure_s)
    except BaseException:
        for close in closers:
            close()
        raise
    facts |= {name: DrafterFacts.of(known[keys[name]]) for name in later}
    lanes = []
    for model in models:
        of_drafter = facts[model.spec.name]
        model.host.cost = of_drafter.costs.step
        lanes.append(_lane(model, of_drafter, loading=model.spec.name in later))
    draft = {model.lane: facts[model.spec.name].costs for model in models}
    costs = Costs(
        verify.verify,
        {lane: measured.step for lane, measured in draft.items()},
        verify_budget=verify.token_budget,
        draft_budgets={lane: measured.token_budget for lane, measured in draft.items()},
        most_tokens=limits.forward_tokens,
        trees=verifier.limits.trees,
        switch=verify.switch,
    )
    grammars = Grammars.of(target.checkpoint, verifier.limits.vocab_size)
    lanes += _lookups(drafters, grammars)
    all_facts = {keys[name]: of_drafter.numbers() for name, of_drafter in facts.items()}
    all_facts[key] = numbers_of_target(verify)
    return Fleet(verifier, lanes, costs, closers, grammars, verifier.load_vocabulary, all_facts)


class _Model(NamedTuple):
    """One lane of a model drafter."""

    spec: DrafterSpec
    lane: str
    host: ModelDrafter


def _loading_message(target: TargetSpec, awaited: Sequence[_Model], later: Collection[str]) -> str:
    drafters = f"; requests are served when all are loaded, {len(awaited)} drafters among them"
    if later:
        drafters = f"; requests are served before {', '.join(sorted(later))} are loaded"
    return f"loading the target {target.checkpoint}{drafters if awaited or later else ''}"


def _verifier(
    spec: TargetSpec, group: Group | None, limits: Limits, closers: list[Callable[[], None]]
) -> ModelVerifier:
    """Adds to `closers` what is to be closed besides the host."""
    if spec.placement == "inline":
        from actors.hosts.inline import verifier_thread  # model code, which takes seconds

        return ModelVerifier(verifier_thread(spec))
    launcher = VerifierLauncher(_required(group), spec)
    closers.append(launcher.discard)
    return ModelVerifier(
        Supervised(
            "the verifier",
            launcher.launch,
            stalled_s=limits.stalled_host_s,
            recovery_s=limits.recovery_s,
            gives_up=True,
            successor=launcher,
            suspect_s=limits.suspect_host_s,
        )
    )


def _models(
    target: TargetSpec, drafters: Sequence[DrafterSpec], group: Group | None, limits: Limits
) -> list[_Model]:
    vocab_size = architecture(target.checkpoint).vocab_size
    models = []
    for spec in drafters:
        if spec.is_lookup:
            continue
        for number, lane in enumerate(spec.lanes):
            worker: Caller
            if spec.placement == "inline":
                from actors.hosts.inline import drafter_thread

                worker = drafter_thread(spec, lane, vocab_size)
            else:
                worker = Supervised(
                    f"drafter {lane}",
                    partial(_required(group).launch_drafter, spec, number, vocab_size),
                    stalled_s=limits.stalled_host_s,
                    recovery_s=limits.recovery_s,
                    gives_up=False,
                )
            models.append(_Model(spec, lane, ModelDrafter(worker)))
    return models


def _required(group: Group | None) -> Group:
    if group is None:
        raise ValueError("placement: actor needs a group of actors to belong to")
    return group


def _has_own_processors(spec: DrafterSpec) -> bool:
    """An inline drafter shares the target's device; an actor without a GPU shares cores, with the
    coordinator at least."""
    return spec.placement == "actor" and spec.gpus > 0


def _lane(model: _Model, facts: DrafterFacts, *, loading: bool) -> Lane:
    spec, lane, host = model
    step = facts.costs.step
    catch_up_s = step.predict(0, 1) - step.predict(0, 0)
    return Lane(
        LaneView(lane, spec.name, spec.capacity, facts.size, catch_up_s),
        host,
        own_processors=_has_own_processors(spec),
        feature_layers=facts.feature_layers,
        loading=loading,
    )


def _lookups(drafters: Sequence[DrafterSpec], grammars: Grammars | None) -> list[Lane]:
    """The lanes of lookups, so cheap that they draft on the event loop and for every request."""
    return [
        Lane(
            LaneView(spec.name, spec.name, _LOOKUP_CAPACITY),
            DirectDrafter(make_lookup(spec, grammars)),
            always_drafts=True,
        )
        for spec in drafters
        if spec.is_lookup
    ]


async def _measure_drafters(
    models: Sequence[_Model], cache_dir: Path, measure_s: float
) -> dict[str, DrafterFacts]:
    """Facts by drafter; of several instances one is measured."""
    by_drafter: dict[str, DrafterFacts] = {}
    for spec, _, host in models:
        if spec.name not in by_drafter:
            costs = await host.measure(cache_dir, measure_s)
            size, layers = await host.size(), await host.feature_layers()
            by_drafter[spec.name] = DrafterFacts(costs, size, layers)
    return by_drafter

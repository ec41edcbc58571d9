"""The fleet of a replica: its target and drafters, loaded, measured and reachable as hosts.

They are measured one after the other, once all are loaded.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

from actors.coordinator.estimates import Costs
from actors.coordinator.settings import Lane, Limits
from actors.hosts.direct import DirectDrafter, make_lookup
from actors.hosts.models import Caller, ModelDrafter, ModelVerifier
from actors.hosts.protocol import VerifierHost
from actors.hosts.spawn import Group
from actors.hosts.supervision import Supervised
from cluster.checkpoints import eagle3_shape
from cluster.config import DrafterConfig, TargetConfig
from cluster.config.drafter_kinds import drafter_kind
from cluster.config.models import Placement
from engine.draft_profile import DraftCosts
from engine.drafters.lookup import LookupDrafter
from engine.grammar.compiler import Grammars
from policies.request import LaneView

_PROGRESS_S = 10
"""Interval of progress messages during a long load."""

Progress = Callable[[str], None]
"""Receives messages about what is loading and what is ready."""
LOG_PROGRESS: Progress = logging.getLogger("spindle").info


class Start(NamedTuple):
    name: str
    where: Placement
    begin: Callable[[], Awaitable[None]]


_DEFAULT_LIMITS = Limits()
_LOOKUP_CAPACITY = 4096
_MEASURING = "measuring what forwards cost on this machine, or reading what was measured before"


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

    @property
    def keeping_outputs(self) -> list[LookupDrafter]:
        """The lookups that draft from past outputs."""
        direct = [lane.host.drafter for lane in self.lanes if isinstance(lane.host, DirectDrafter)]
        lookups = [one for one in direct if isinstance(one, LookupDrafter)]
        return [one for one in lookups if one.past.max_tokens]

    async def close(self) -> None:
        """Kills all actors; threads end after their present call."""
        for close in self.closers:
            close()


async def start_fleet(
    target: TargetConfig,
    drafters: Sequence[DrafterConfig],
    cache_dir: Path,
    group: Group | None = None,
    limits: Limits = _DEFAULT_LIMITS,
    progress: Progress = LOG_PROGRESS,
    measure_s: float = inf,
) -> Fleet:
    """`group`: creates the actors; not needed without any. `cache_dir`: for profiles; `measure_s`:
    the time that measuring one model may take. Raises HostLost or the error of a model
    (UnsupportedModel, IncompatibleDrafter, ...), after closing all hosts."""
    layers = _feature_layers(target, drafters)
    verifier = ModelVerifier(_verifier(target, layers, group, limits))
    models = _models(target, drafters, group, limits)
    closers = [verifier.close, *(model.host.close for model in models)]
    starts = [Start("target", target.placement, verifier.start)]
    starts += [Start(one.lane, one.drafter.placement, one.host.start) for one in models]
    try:
        waits = f"; requests are served when all are loaded, {len(models)} drafters among them"
        progress(f"loading the target {target.model}{waits if models else ''}")
        await start_all(starts, progress)
        progress(_MEASURING + (f": up to {measure_s:g} s a model" if isfinite(measure_s) else ""))
        verify = await verifier.measure(cache_dir, measure_s)
        verifier.cost = verify.verify
        draft = await _measure_drafters(models, cache_dir, measure_s)
        lanes = [await _lane(model, draft[model.lane], target) for model in models]
    except BaseException:
        for close in closers:
            close()
        raise
    costs = Costs(
        verify.verify,
        {lane: measured.step for lane, measured in draft.items()},
        verify_budget=verify.token_budget,
        draft_budgets={lane: measured.token_budget for lane, measured in draft.items()},
        most_tokens=limits.forward_tokens,
        trees=verifier.limits.trees,
        switch=verify.switch,
    )
    grammars = Grammars.of(target.header_path(), verifier.limits.vocab_size)
    lanes += _lookups(drafters, grammars)
    return Fleet(verifier, lanes, costs, closers, grammars, verifier.load_vocabulary)


class _Model(NamedTuple):
    """One lane of a model drafter."""

    drafter: DrafterConfig
    lane: str
    host: ModelDrafter


def _feature_layers(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> tuple[int, ...]:
    """The target's layers whose hidden states the heads read."""
    own = target.architecture().num_hidden_layers
    heads = [one.header_path() for one in drafters if drafter_kind(one.kind).reads_features]
    shapes = [eagle3_shape(head, own) for head in heads if head is not None]
    return tuple(sorted({layer for shape in shapes for layer in shape.aux_layers}))


def _verifier(
    target: TargetConfig, feature_layers: tuple[int, ...], group: Group | None, limits: Limits
) -> Caller:
    if target.placement == "inline":
        from actors.hosts.inline import verifier_thread  # model code, which takes seconds

        return verifier_thread(target, feature_layers, limits.stalled_host_s)
    return Supervised(
        "the verifier",
        partial(_required(group).launch_verifier, target, feature_layers),
        stalled_s=limits.stalled_host_s,
        recovery_s=limits.recovery_s,
        gives_up=True,
    )


def _models(
    target: TargetConfig, drafters: Sequence[DrafterConfig], group: Group | None, limits: Limits
) -> list[_Model]:
    models = []
    for drafter in drafters:
        if drafter.is_lookup:
            continue
        for lane in drafter.lanes:
            worker: Caller
            if drafter.placement == "inline":
                from actors.hosts.inline import drafter_thread

                worker = drafter_thread(drafter, lane, target, limits.stalled_host_s)
            else:
                worker = Supervised(
                    f"drafter {lane}",
                    partial(_required(group).launch_drafter, drafter, lane, target),
                    stalled_s=limits.stalled_host_s,
                    recovery_s=limits.recovery_s,
                    gives_up=False,
                )
            models.append(_Model(drafter, lane, ModelDrafter(worker)))
    return models


def _required(group: Group | None) -> Group:
    if group is None:
        raise ValueError("placement: actor needs a group of actors to belong to")
    return group


async def _lane(model: _Model, costs: DraftCosts, target: TargetConfig) -> Lane:
    drafter, lane, host = model
    host.cost = costs.step
    catch_up_s = costs.step.predict(0, 1) - costs.step.predict(0, 0)
    return Lane(
        LaneView(lane, drafter.name, drafter.max_batch, catch_up_s),
        host,
        own_processors=drafter.is_apart_from(target),
        feature_layers=await host.feature_layers(),
    )


def _lookups(drafters: Sequence[DrafterConfig], grammars: Grammars | None) -> list[Lane]:
    """The lanes of lookups, so cheap that they draft on the event loop and for every request."""
    return [
        Lane(
            LaneView(drafter.name, drafter.name, _LOOKUP_CAPACITY),
            DirectDrafter(make_lookup(drafter, grammars)),
            always_drafts=True,
        )
        for drafter in drafters
        if drafter.is_lookup
    ]


async def _measure_drafters(
    models: Sequence[_Model], cache_dir: Path, measure_s: float
) -> dict[str, DraftCosts]:
    """Costs by lane; of several instances of a drafter one is measured."""
    by_drafter: dict[str, DraftCosts] = {}
    for drafter, _, host in models:
        if drafter.name not in by_drafter:
            by_drafter[drafter.name] = await host.measure(cache_dir, measure_s)
    return {model.lane: by_drafter[model.drafter.name] for model in models}


async def start_all(starts: Sequence[Start], progress: Progress) -> None:
    """Actors load in parallel; models in this process one after the other, because transformers
    keeps the settings of a load in globals. Raises the first error."""

    async def in_turn() -> None:
        for start in starts:
            if start.where == "inline":
                await _start(start, progress)

    actors = [_start(start, progress) for start in starts if start.where == "actor"]
    try:
        async with asyncio.TaskGroup() as together:
            for one in [*actors, in_turn()]:
                together.create_task(one)
    except* Exception as errors:
        raise errors.exceptions[0] from None


async def _start(start: Start, progress: Progress) -> None:
    """With messages while loading takes long, as vLLM's compilation does."""
    clock = asyncio.get_running_loop().time
    started = clock()

    async def report() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            progress(f"{start.name}: still loading after {clock() - started:.0f} s")

    reporting = asyncio.create_task(report())
    try:
        await start.begin()
    finally:
        reporting.cancel()
    progress(f"{start.name}: ready after {clock() - started:.1f} s")

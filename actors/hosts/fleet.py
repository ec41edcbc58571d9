"""The fleet of a replica: its target and drafters, loaded, measured and reachable as hosts.

Actors load in parallel; models in this process one after the other, because transformers keeps the
settings of a load in globals. All are measured one after the other, after the last load.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.coordinator.estimates import Costs
from actors.coordinator.settings import Lane, Limits
from actors.hosts.direct import DirectDrafter, make_lookup
from actors.hosts.protocol import VerifierHost
from actors.hosts.remote import RemoteDrafter, RemoteVerifier
from actors.hosts.spawn import Group, VerifierLauncher
from actors.hosts.specs import DrafterSpec, TargetSpec, Where
from actors.hosts.supervision import Supervised
from actors.hosts.tokenizer_check import check_tokenizers
from cluster.checkpoints import architecture
from engine.draft_profile import DraftCosts
from engine.grammar.compiler import Grammars
from policies.cost import CostModel
from policies.request import LaneView

if TYPE_CHECKING:  # imports model code, which takes seconds
    from actors.hosts.inline import ThreadDrafter, ThreadVerifier

_DEFAULT_LIMITS = Limits()
_LOOKUP_CAPACITY = 4096
_PROGRESS_S = 10
"""Interval of progress messages during a long load."""
_MEASURING = "measuring what forwards cost on this machine, or reading what was measured before"
_LOG = logging.getLogger("spindle")

Progress = Callable[[str], None]
"""Receives messages about what is loading and what is ready."""


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

    async def close(self) -> None:
        """Kills all actors; threads end after their present call."""
        if self.grammars is not None:
            self.grammars.close()
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
    progress: Progress = _LOG.info,
    measure_s: float = inf,
) -> Fleet:
    """`group`: creates the actors; not needed without any. `cache_dir`: for profiles; `measure_s`:
    the time that measuring one model may take. Raises HostLost or the error of a model
    (UnsupportedModel, IncompatibleDrafter, ...), after closing all hosts."""
    await asyncio.to_thread(check_tokenizers, target.checkpoint, drafters)
    closers: list[Callable[[], None]] = []
    verifier = _verifier(target, group, limits, closers)
    models = _models(target, drafters, group, limits)
    closers += [verifier.close, *(model.host.close for model in models)]
    try:
        await _start(target, verifier, models, progress)
        progress(_MEASURING + (f": up to {measure_s:g} s a model" if isfinite(measure_s) else ""))
        verify = await verifier.measure(cache_dir, measure_s)
        draft = await _measured(models, cache_dir, measure_s)
        views = [await _view(model, draft[model.lane].step) for model in models]
    except BaseException:
        for close in closers:
            close()
        raise
    lanes = [
        Lane(
            view,
            model.host,
            own_processors=_has_own_processors(model.spec),
            feature_layers=await model.host.feature_layers(),
        )
        for view, model in zip(views, models, strict=True)
    ]
    costs = Costs(
        verify.verify,
        {lane: measured.step for lane, measured in draft.items()},
        verify_budget=verify.token_budget,
        draft_budgets={lane: measured.token_budget for lane, measured in draft.items()},
        most_tokens=limits.forward_tokens,
        trees=verifier.limits.trees,
        switch=verify.switch,
    )
    grammars = Grammars.of(target.checkpoint, verifier.limits.vocab_size, limits.compile_s)
    lanes += _lookups(drafters, grammars)
    return Fleet(verifier, lanes, costs, closers, grammars, verifier.load_vocabulary)


class _Model(NamedTuple):
    """One lane of a model drafter."""

    spec: DrafterSpec
    lane: str
    host: "RemoteDrafter | ThreadDrafter"


def _verifier(
    spec: TargetSpec, group: Group | None, limits: Limits, closers: list[Callable[[], None]]
) -> "RemoteVerifier | ThreadVerifier":
    """Adds to `closers` what is to be closed besides the host."""
    if spec.placement == "inline":
        from actors.hosts.inline import ThreadVerifier

        return ThreadVerifier(spec)
    launcher = VerifierLauncher(_required(group), spec, limits.recovery_s)
    closers.append(launcher.close)
    return RemoteVerifier(
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
            if spec.placement == "inline":
                from actors.hosts.inline import ThreadDrafter

                models.append(_Model(spec, lane, ThreadDrafter(spec, lane, vocab_size)))
                continue
            host = Supervised(
                f"drafter {lane}",
                partial(_required(group).launch_drafter, spec, number, vocab_size),
                stalled_s=limits.stalled_host_s,
                recovery_s=limits.recovery_s,
                gives_up=False,
            )
            models.append(_Model(spec, lane, RemoteDrafter(host)))
    return models


def _required(group: Group | None) -> Group:
    if group is None:
        raise ValueError("placement: actor needs a group of actors to belong to")
    return group


def _has_own_processors(spec: DrafterSpec) -> bool:
    """An inline drafter shares the target's device; an actor without a GPU shares cores, with the
    coordinator at least."""
    return spec.placement == "actor" and spec.gpus > 0


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


async def _start(
    target: TargetSpec,
    verifier: "RemoteVerifier | ThreadVerifier",
    models: Sequence[_Model],
    progress: Progress,
) -> None:
    async def start(name: str, starting: Awaitable[None]) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        async with _progress_messages(name, progress):
            await starting
        progress(f"{name}: ready after {clock() - started:.1f} s")

    async def in_turn(starts: Sequence[Coroutine[Any, Any, None]]) -> None:
        for one in starts:
            await one

    starts: dict[Where, list[Coroutine[Any, Any, None]]] = {"actor": [], "inline": []}
    progress(f"loading the target {target.checkpoint} and {len(models)} drafters")
    starts[target.placement].append(start("target", verifier.start()))
    for spec, lane, host in models:
        starts[spec.placement].append(start(lane, host.start()))
    try:
        async with asyncio.TaskGroup() as together:
            for one in [*starts["actor"], in_turn(starts["inline"])]:
                together.create_task(one)
    except* Exception as errors:
        raise errors.exceptions[0] from None


@asynccontextmanager
async def _progress_messages(name: str, progress: Progress) -> AsyncIterator[None]:
    """Periodic messages while loading takes long, as vLLM's compilation does."""

    async def report() -> None:
        for seconds in count(_PROGRESS_S, _PROGRESS_S):
            await asyncio.sleep(_PROGRESS_S)
            progress(f"{name}: still loading after {seconds} s")

    reporting = asyncio.create_task(report())
    try:
        yield
    finally:
        reporting.cancel()


async def _measured(
    models: Sequence[_Model], cache_dir: Path, measure_s: float
) -> dict[str, DraftCosts]:
    """The costs of draft steps by lane; instances of one drafter are measured once."""
    by_drafter: dict[str, DraftCosts] = {}
    for spec, _, host in models:
        if spec.name not in by_drafter:
            by_drafter[spec.name] = await host.measure(cache_dir, measure_s)
        host.cost = by_drafter[spec.name].step
    return {lane: by_drafter[spec.name] for spec, lane, _ in models}


async def _view(model: _Model, cost: CostModel) -> LaneView:
    spec, lane, host = model
    catch_up_s = cost.predict(0, 1) - cost.predict(0, 0)
    return LaneView(lane, spec.name, spec.capacity, await host.size(), catch_up_s)

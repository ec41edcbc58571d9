"""Creates policies by the names and options of the config.

Each option is a field of the policy's parameter dataclass, which documents it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from policies.cost import NO_SWITCH, SwitchCost
from policies.estimates.calibration import Calibration
from policies.protocols import Schedule, Selection, Speculation
from policies.scheduling.default import DefaultSchedule
from policies.scheduling.fairness import FairnessParams, FairSchedule
from policies.scheduling.fcfs import fcfs
from policies.scheduling.laps_sd import LapsSd, LapsSdParams
from policies.scheduling.self_ranked import SelfRanked, SelfRankedParams
from policies.selection.fixed import Fixed, FixedParams
from policies.selection.hedge import Hedge
from policies.selection.lbss import Lbss, LbssParams
from policies.speculation import fixed
from policies.speculation.adaserve import AdaServe, AdaServeParams
from policies.speculation.planner.policy import Planner, PlannerParams
from policies.speculation.specserve import SpecServe, SpecServeParams

Options = Mapping[str, Any]
Calibrations = Mapping[str, Calibration]
"""By lane. The coordinator goes on updating these objects."""
Make = TypeVar("Make", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class NoParams:
    """For policies without options."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[Make]):
    params: type
    make: Make


Selections = Mapping[str, Entry[Callable[[Any, int], Selection]]]
Speculations = Mapping[str, Entry[Callable[[Any, Calibrations], Speculation]]]
Schedules = Mapping[str, Entry[Callable[[Any, SwitchCost], Schedule]]]

SELECTIONS: Selections = {
    "fixed": Entry(FixedParams, lambda params, seed: Fixed(params)),
    "lbss": Entry(LbssParams, Lbss),
    "hedge": Entry(NoParams, lambda params, seed: Hedge()),
}

SPECULATIONS: Speculations = {
    "off": Entry(NoParams, lambda params, calibrations: fixed.Off()),
    "fixed": Entry(fixed.FixedParams, lambda params, calibrations: fixed.Fixed(params)),
    "specserve": Entry(SpecServeParams, SpecServe),
    "adaserve": Entry(AdaServeParams, lambda params, calibrations: AdaServe(params)),
    "planner": Entry(PlannerParams, Planner),
}

SCHEDULES: Schedules = {
    "fcfs": Entry(NoParams, lambda params, switch: fcfs()),
    "laps_sd": Entry(LapsSdParams, LapsSd),
    "self_ranked": Entry(SelfRankedParams, lambda params, switch: SelfRanked(params)),
    "default": Entry(NoParams, lambda params, switch: DefaultSchedule()),
}


def make_selection(
    name: str, options: Options | None = None, seed: int = 0, entries: Selections = SELECTIONS
) -> Selection:
    """`entries`: with others than the product's, as those in lab/baselines/catalogue.py."""
    entry = _entry("selection", entries, name)
    return entry.make(_params(f"selection.{name}", entry.params, options or {}), seed)


def make_speculation(
    name: str,
    options: Options | None = None,
    calibrations: Calibrations | None = None,
    entries: Speculations = SPECULATIONS,
) -> Speculation:
    entry = _entry("speculation", entries, name)
    params: object = _params(f"speculation.{name}", entry.params, options or {})
    return entry.make(params, calibrations if calibrations is not None else {})


def make_schedule(
    name: str,
    options: Options | None = None,
    switch: SwitchCost = NO_SWITCH,
    entries: Schedules = SCHEDULES,
) -> Schedule:
    """The schedule alone; `fair` adds priorities, tenants and the bound on waiting. `switch`: the
    measured cost of a preemption."""
    entry = _entry("schedule", entries, name)
    return entry.make(_params(f"schedule.{name}", entry.params, options or {}), switch)


def fair(schedule: Schedule, options: Options | None = None) -> FairSchedule:
    return FairSchedule(schedule, _params("fairness", FairnessParams, options or {}))


_Entry = TypeVar("_Entry")


def _entry(kind: str, entries: Mapping[str, _Entry], name: str) -> _Entry:
    if name not in entries:
        raise ValueError(f"{kind}: there is no {name!r}; choose one of {', '.join(entries)}")
    return entries[name]


_Params = TypeVar("_Params")


def _params(where: str, kind: type[_Params], options: Options) -> _Params:
    """The parameter dataclass with these options; nested dataclasses are given as mappings."""
    hints = get_type_hints(kind)
    known = list(hints)
    values = {}
    for name, value in options.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{where}: there is no option {name!r}; {has}")
        nested = is_dataclass(hints[name]) and isinstance(value, Mapping)
        values[name] = _params(f"{where}.{name}", hints[name], value) if nested else value
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error

"""Every decision of a run's policies, one line each.

Processors differ in the last bit of a sum, which may decide between equals. So that a recording
holds on every machine, a run is recorded only if it has no such ties: moving the inputs of all
decisions by up to a millionth of themselves must change none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.settings import Policies
from policies.cost import CostModel
from policies.protocols import (
    Candidates,
    DraftPlan,
    LaneBatch,
    Mask,
    RoundContext,
    StepRule,
)
from policies.request import LaneView, RequestView, RoundOutcome

ROUNDING = 1e-6
"""Far more than the last bit of anything, single precision included."""

Through = Callable[[Policies], Policies]
Run = Callable[[Through], None]
"""Runs a simulation whose policies pass through the given function before use."""


def decisions_of(run: Run, noise: float = 0.0) -> list[str]:
    """`noise`: the share of itself by which each input is moved at most."""
    log = Log(noise)
    run(lambda policies: logged(policies, log))
    return log.lines


def first_difference(lines: Sequence[str], others: Sequence[str]) -> int | None:
    for place, (line, other) in enumerate(zip(lines, others, strict=False)):
        if line != other:
            return place
    return None if len(lines) == len(others) else min(len(lines), len(others))


class Log:
    def __init__(self, noise: float) -> None:
        self.lines: list[str] = []
        self._noise = noise
        self._rng = np.random.default_rng(0)
        self._last: dict[str, str] = {}

    def add(self, kind: str, decision: str) -> None:
        """What equals the last one of its kind is shown as `=`."""
        again = self._last.get(kind) == decision
        self._last[kind] = decision
        self.lines.append(f"{kind} {'=' if again else decision}")

    def factors(self, count: int) -> NDArray[np.float64]:
        """By which inputs are multiplied."""
        return 1.0 + self._noise * self._rng.uniform(-1.0, 1.0, count)

    def nudged(self, context: RoundContext) -> RoundContext:
        """With its costs moved."""
        verify, handling, *draft = self.factors(2 + len(context.draft)).tolist()
        costs = zip(context.draft.items(), draft, strict=True)
        return context._replace(
            verify=_scaled(context.verify, verify),
            draft={lane: _scaled(cost, factor) for (lane, cost), factor in costs},
            handling_s=context.handling_s * handling,
        )


def logged(policies: Policies, log: Log) -> Policies:
    schedule: Any = LoggedSchedule(policies.schedule, log)
    selection: Any = LoggedSelection(policies.selection, log)
    speculation: Any = LoggedSpeculation(policies.speculation, log)
    return Policies(schedule, selection, speculation)


class Logged:
    """A policy that is asked as it is, but for the methods of the subclass."""

    def __init__(self, policy: Any, log: Log) -> None:
        self._policy = policy
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class LoggedSchedule(Logged):
    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        picked: list[str] = self._policy.pick(requests, running, slots, now)
        self._log.add("run", " ".join(picked))
        return picked


class LoggedSelection(Logged):
    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        nudged = self._log.nudged(context)
        chosen: Mapping[str, str | None] = self._policy.assign(requests, lanes, nudged, now)
        self._log.add("lane", " ".join(f"{name}:{lane or '-'}" for name, lane in chosen.items()))
        return chosen

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        factors = self._log.factors(len(outcomes)).tolist()
        nudged = [
            one._replace(seconds=one.seconds * factor)
            for one, factor in zip(outcomes, factors, strict=True)
        ]
        self._policy.observe(nudged)


class LoggedSpeculation(Logged):
    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        plans: list[DraftPlan] = self._policy.plan(batches, self._log.nudged(context), now)
        shown = [
            f"{batch.lane or '-'}:" + ",".join(_limit(*limit) for limit in plan.limits)
            for batch, plan in zip(batches, plans, strict=True)
        ]
        self._log.add("plan", " ".join(shown))
        return [
            plan if plan.rule is None else replace(plan, rule=LoggedRule(plan.rule, self._log))
            for plan in plans
        ]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        trees = candidates.trees
        confidence = trees.confidence * self._log.factors(len(trees.tokens))
        nudged = trees._replace(confidence=confidence.astype(np.float32))
        moved = replace(candidates, trees=nudged)
        kept: Mask = self._policy.select(moved, self._log.nudged(context), now)
        bounds = trees.starts.tolist()
        self._log.add("keep", " ".join(_bits(kept[begin:end]) for begin, end in pairwise(bounds)))
        return kept


@dataclass(slots=True)
class LoggedRule:
    rule: StepRule
    log: Log

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        continues = self.rule(depth, requests, frontier)
        self.log.add("step", f"{depth}:{_bits(continues)}")
        return continues


def _scaled(cost: CostModel, factor: float) -> CostModel:
    """Its seconds times a factor."""
    piecewise = cost.piecewise
    return piecewise._replace(
        alpha=piecewise.alpha * factor,
        gamma=piecewise.gamma * factor,
        delta=piecewise.delta * factor,
        gamma_more=piecewise.gamma_more * factor,
    )


def _limit(depth: int, width: int) -> str:
    return f"{depth}x{width}" if width > 1 else str(depth)


def _bits(flags: Sequence[bool] | Mask) -> str:
    return "".join("1" if flag else "0" for flag in flags) or "-"

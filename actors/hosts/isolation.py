"""Isolates failing requests: if a batch of orders raises, finds those that raise by themselves.

Every call of a drafter or verifier goes through this; the other orders are answered in the same
call.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from actors.hosts.protocol import HostLost
from engine.errors import RankLost
from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    DraftStep,
    Failed,
    Missing,
    NoRoom,
    Prefix,
    to_ordered_depth,
)
from policies.protocols import StepRule

_LOG = logging.getLogger("spindle")


class _HasPrefix(Protocol):
    @property
    def prefix(self) -> Prefix: ...


class _Host(Protocol):
    """A drafter or a verifier."""

    def forget(self, requests: Collection[str]) -> None: ...

    def roll_back(self, requests: Collection[str]) -> None: ...


Order = TypeVar("Order", bound=_HasPrefix)
Answer = TypeVar("Answer")


def isolated(
    host: _Host,
    work: Callable[[Sequence[Order]], Sequence[Answer]],
    orders: Sequence[Order],
    probe: Callable[[], None],
) -> list[Answer | Failed]:
    """The answers of `work`, a method of `host`, with Failed for orders for which it raises.
    `probe` runs the host on an order that is known to be good.

    Raises HostLost if the probe raises too, since the host or its device is then broken. RankLost
    passes through: after a failed step, vLLM's state is unknown. The coordinator then finds the
    request that is the cause (actors/coordinator/suspects.py).
    """
    try:
        return [*work(orders)]
    except (HostLost, RankLost):
        raise
    except Exception as error:
        try:
            answers = _by_halves(host, work, orders, error)
            failed = [answer.request for answer in answers if isinstance(answer, Failed)]
            host.forget(failed)
            if failed:
                probe()
        except (HostLost, RankLost):
            raise
        except Exception as broken:
            raise HostLost(f"every call to it fails: {broken!r}") from broken
        if not failed:
            _LOG.warning("%d orders fail as a batch, none alone", len(orders), exc_info=error)
        return answers


def _by_halves(
    host: _Host,
    work: Callable[[Sequence[Order]], Sequence[Answer]],
    orders: Sequence[Order],
    error: Exception,
) -> list[Answer | Failed]:
    """Splits the orders until those that raise by themselves are found. `error`: raised for all of
    them."""
    host.roll_back([order.prefix.request for order in orders])
    if len(orders) == 1:
        prefix = orders[0].prefix
        _LOG.error("request %s fails and is given up here", prefix.request, exc_info=error)
        return [Failed(prefix.request, prefix.attempt, prefix.round)]
    answers: list[Answer | Failed] = []
    middle = len(orders) // 2
    for half in (orders[:middle], orders[middle:]):
        try:
            answers += work(half)
        except (HostLost, RankLost):
            raise
        except Exception as half_error:
            answers += _by_halves(host, work, half, half_error)
    return answers


def as_callback(rule: StepRule | None) -> ContinueDrafting:
    """A policy's step rule as the callback that drafters take."""
    if rule is None:
        return to_ordered_depth

    def continues(step: DraftStep) -> Sequence[bool]:
        return rule(step.depth, step.requests, step.frontier)

    return continues


def draft_isolated(
    drafter: Drafter,
    orders: Sequence[DraftOrder],
    rule: StepRule | None,
    probe: Callable[[], None],
) -> list[Draft | Missing | NoRoom | Failed]:
    """The drafter's answers, Failed for the requests for which it raises."""
    continues = as_callback(rule)
    return isolated(drafter, lambda some: drafter.draft(some, continues), orders, probe)

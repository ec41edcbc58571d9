"""One request cannot harm another: where a batch of orders fails, those that fail alone are found.

All drafters and verifiers work behind this. The others are answered in the same call.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from actors.hosts.protocol import HostLost
from engine.parallel.ranks import RankLost
from engine.protocol import Failed, Prefix

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
    """The answers of `host`'s `work`, Failed for the orders that it raises for. `probe` works on
    an order that is known to be good.

    Raises HostLost where the probe fails as well: then it is the host, or its device, that is
    broken. Tensor-parallel ranks lose each other when a forward raises, and vLLM is not to be
    trusted behind a failed step: both say RankLost, which passes through. The coordinator then
    finds the request by which they are lost (actors/coordinator/verifying.py).
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
            raise HostLost(f"it fails whatever it is asked: {broken!r}") from broken
        if not failed:
            _LOG.warning("%d orders fail together, not apart", len(orders), exc_info=error)
        return answers


def _by_halves(
    host: _Host,
    work: Callable[[Sequence[Order]], Sequence[Answer]],
    orders: Sequence[Order],
    error: Exception,
) -> list[Answer | Failed]:
    """`error`: which `work` has raised for them all together."""
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
        except Exception as again:
            answers += _by_halves(host, work, half, again)
    return answers

"""Triage: while running requests fall behind their TPOT, new ones wait instead of starting.

A batch that is too large makes all its requests miss their SLOs, a smaller one serves them one
after the other within theirs. The waiting ones are then admitted one at a time, each once the one
before it has its first token, so that its effect shows before the next one starts.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from policies.request import RequestView

_HALF = 0.5
"""Holding back a request that could still meet its TTFT misses one SLO for certain, so it is done
only while more than this share of the running requests are late."""


class Triage:
    """Each tenant's late requests hold back its own new ones, and those of others only beyond an
    equal share of the slots: else one request with a TPOT out of reach would stop everybody."""

    def __init__(self, late_share: float) -> None:
        """New requests wait while more than `late_share` of the running ones are late."""
        self._late_share = late_share
        self._held_by_own: set[str] = set()
        """Tenants with requests held back by their own late ones."""
        self._held_by_all = False

    def admitted(
        self,
        order: Sequence[RequestView],
        running: Collection[str],
        exempt: Collection[str],
        now: float,
        slots: int,
    ) -> list[str]:
        """The names in `order` without those held back. Never held: requests that run or have
        run, those in `exempt`, and those of a priority above all that run with a TPOT."""
        of_all = _Gate(order, running, self._late_share, self._held_by_all, now)
        if not (of_all.late or self._held_by_all or self._held_by_own):
            return [view.name for view in order]
        of_tenant: dict[str, list[RequestView]] = {}
        for view in order:
            of_tenant.setdefault(view.tenant, []).append(view)
        gates = {
            tenant: _Gate(own, running, self._late_share, tenant in self._held_by_own, now)
            for tenant, own in of_tenant.items()
        }
        placed = Counter(view.tenant for view in order if view.name in running)
        admitted: list[str] = []
        self._held_by_own, self._held_by_all = set(), False
        for view in order:
            tenant = view.tenant
            if view.name not in running:
                started = view.name in exempt or view.first_token_s is not None
                if not (started or gates[tenant].passes(view, now)):
                    self._held_by_own.add(tenant)
                    continue
                beyond = placed[tenant] * len(gates) >= slots
                if beyond and not (started or of_all.passes(view, now)):
                    self._held_by_all = True
                    continue
                placed[tenant] += 1
            admitted.append(view.name)
        return admitted


class _Gate:
    """Lets new requests pass some requests that run: one tenant's, or all."""

    def __init__(
        self,
        views: Sequence[RequestView],
        running: Collection[str],
        late_share: float,
        holding: bool,
        now: float,
    ) -> None:
        """`holding`: it has held requests back until now."""
        racing = [view for view in views if view.name in running and _can_meet_tpot(view)]
        self.late = sum(_is_late(view, now) for view in racing)
        waits = self.late > late_share * len(racing)
        starting = sum(view.name in running and view.first_token_s is None for view in views)
        # Without a TPOT there is nothing left to protect.
        holding = holding and any(view.slo.tpot_s is not None for view in views)
        self._open = not waits and not holding
        self._room = 0 if waits else 1 - starting
        self._most_late = self.late > _HALF * len(racing)
        self._priority = max((view.priority for view in racing), default=None)

    def passes(self, view: RequestView, now: float) -> bool:
        if (
            self._open
            or (self._priority is not None and view.priority > self._priority)
            or (not self._most_late and _can_meet_ttft(view, now))
        ):
            return True
        self._room -= 1
        return self._room >= 0


def _can_meet_tpot(view: RequestView) -> bool:
    """Whether it is decoding with a TPOT, and has met its TTFT."""
    if view.slo.tpot_s is None or view.first_token_s is None:
        return False
    return view.slo.ttft_s is None or view.first_token_s - view.arrival_s <= view.slo.ttft_s


def _can_meet_ttft(view: RequestView, now: float) -> bool:
    return view.slo.ttft_s is not None and now - view.arrival_s <= view.slo.ttft_s


def _is_late(view: RequestView, now: float) -> bool:
    """Whether its mean time per token so far is above its TPOT."""
    if view.slo.tpot_s is None or view.first_token_s is None:
        return False
    return now - view.first_token_s > view.slo.tpot_s * (view.generated - 1)

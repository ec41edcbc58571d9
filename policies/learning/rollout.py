"""Which version of a learning drafter each lane serves.

A candidate that is better on the last requests becomes a version, which one lane serves first (the
canary). By what it achieves there it is then served by all lanes, or rolled back. With one lane
alone it is compared with what that lane achieved before.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from policies.learning.judging import BEYOND_NOISE, ENOUGH, Agreement, Window, served_gain

BASE = 0
"""The version that the config names."""
UNUSED = 1024
"""Requests that are judged while none ends for which the canary has drafted: then a newer candidate
takes its place."""
_MOST_TENANTS = 50
"""More than these are looked at together."""
_OTHERS = "\0others"


@dataclass(slots=True)
class Rollout:
    most: int
    """The requests of each tenant that are looked at."""
    serving: int = BASE
    canary: int | None = None
    window: Window = field(init=False)
    _unused: int = 0
    """Requests judged since the canary began, or drafted for the last one."""
    _tenants: set[str] = field(default_factory=set)
    _served: dict[int, dict[str, deque[Agreement]]] = field(default_factory=dict)
    """By version and tenant, the last requests as served."""

    def __post_init__(self) -> None:
        self.window = Window(self.most)

    @property
    def wants_version(self) -> bool:
        """Whether the candidate should become a version now."""
        in_use = self.canary is not None and self._unused < UNUSED
        return not in_use and self.window.better

    def begin(self, version: int) -> None:
        """One lane serves it from now on."""
        self._forget_canary()
        self.canary = version

    def judged(self, tenant: str, served: Agreement, candidate: Agreement) -> None:
        """A request from which neither has learned yet."""
        self._unused += 1
        self.window.add(self._counted(tenant), served, candidate)

    def served(self, version: int, tenant: str, agreement: Agreement) -> None:
        """A request that has ended, by the version that drafted for it."""
        if version not in (self.serving, self.canary) or not agreement.forwards:
            return
        if version == self.canary:
            self._unused = 0
        by_tenant, tenant = self._served.setdefault(version, {}), self._counted(tenant)
        by_tenant.setdefault(tenant, deque(maxlen=self.most)).append(agreement)

    def decide(self) -> bool:
        """Ends the canary where enough is known of it. Returns whether anything has changed."""
        canary = self.canary
        if canary is None:
            return False
        after, before = self._served.get(canary, {}), self._served.get(self.serving, {})
        if sum(map(len, after.values())) < ENOUGH:
            return False
        # Where only one of them has served a tenant, nothing can be compared.
        common = [tenant for tenant in after if len(before.get(tenant, ())) >= 2]
        gains = [
            served_gain(before[tenant], after[tenant])
            for tenant in common
            if len(after[tenant]) >= ENOUGH
        ]
        gains.append(served_gain(_joined(before, common), _joined(after, common)))
        if min(gains) < -BEYOND_NOISE:
            self.roll_back()
            return True
        self._served.pop(self.serving, None)
        self.serving, self.canary = canary, None
        self.window.clear()  # it compares with another version
        return True

    def roll_back(self) -> None:
        """Also where a lane cannot serve the canary."""
        self._forget_canary()
        self.window.clear()

    def _forget_canary(self) -> None:
        if self.canary is not None:
            self._served.pop(self.canary, None)
        self.canary, self._unused = None, 0

    def _counted(self, tenant: str) -> str:
        if len(self._tenants) < _MOST_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else _OTHERS

    def versions(self, lanes: Iterable[str]) -> dict[str, int]:
        """What each lane should serve; the canary is on the first of them by name."""
        ordered = sorted(lanes)
        wanted = dict.fromkeys(ordered, self.serving)
        if self.canary is not None and ordered:
            wanted[ordered[0]] = self.canary
        return wanted


def _joined(served: dict[str, deque[Agreement]], tenants: Sequence[str]) -> list[Agreement]:
    return [one for tenant in tenants for one in served[tenant]]

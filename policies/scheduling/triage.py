"""Triage: while running requests fall behind their TPOT, new ones wait instead of starting.

A batch that is too large makes all its requests miss their SLOs, a smaller one serves them one
after the other within theirs. The waiting ones are then admitted one at a time, each once the one
before it has its first token, so that its effect shows before the next one starts.
"""

from collections.abc import Collection, Sequence

from policies.request import RequestView

_HALF = 0.5
"""Holding back a request that could still meet its TTFT misses one SLO for certain, so it is done
only while more than this share of the running requests are late."""


class Triage:
    def __init__(self, late_share: float) -> None:
        """New requests wait while more than `late_share` of the running ones are late."""
        self._late_share = late_share
        self._holding = False

    def admitted(
        self,
        order: Sequence[RequestView],
        running: Collection[str],
        exempt: Collection[str],
        now: float,
    ) -> list[str]:
        """The names in `order` without those held back. Never held: requests that run or have
        run, those in `exempt`, and those of a priority above all that run with a TPOT."""
        racing = [view for view in order if view.name in running and _can_meet_tpot(view)]
        late = sum(_is_late(view, now) for view in racing)
        waits = late > self._late_share * len(racing)
        if not waits and not self._holding:
            return [view.name for view in order]
        starting = sum(view.name in running and view.first_token_s is None for view in order)
        room = 0 if waits else 1 - starting
        most_late = late > _HALF * len(racing)
        priority = max((view.priority for view in racing), default=None)

        def never_held(view: RequestView) -> bool:
            return (
                view.name in running
                or view.name in exempt
                or view.first_token_s is not None
                or (priority is not None and view.priority > priority)
                or (not most_late and _can_meet_ttft(view, now))
            )

        admitted = []
        for view in order:
            if not never_held(view):
                room -= 1
                if room < 0:
                    continue
            admitted.append(view.name)
        self._holding = len(admitted) < len(order)
        return admitted


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

"""Finds the request that makes drafters die, and keeps it away from model drafters.

A request in a call in which a drafter is lost is a suspect, until a drafter has drafted for it
again. Suspects of one lane draft in two halves, apart from each other and from other requests, so
that every further loss leaves half as many suspects. The halves differ with each loss, as the bits
of a hash of the request's name do. After _BARRED losses a request drafts on lookups only.
"""

import logging
from collections.abc import Sequence
from zlib import crc32

from actors.coordinator.request_state import RequestState
from engine.protocol import Draft

_LOG = logging.getLogger("spindle")
_BARRED = 3
_TURNS = 4
"""Of so many micro-batches of a lane with suspects, the last two are of one half of them each."""


class DrafterSuspects:
    def __init__(self) -> None:
        self._any = False
        """Some request may be a suspect."""
        self._turn = 0

    def lost(self, requests: Sequence[RequestState]) -> None:
        """A drafter was lost in a call for these."""
        self._any = True
        for request in requests:
            request.drafter_losses += 1
            if self.barred(request):
                _LOG.error(
                    "request %s drafts on no model any more: %d drafters were lost over it",
                    request.name,
                    request.drafter_losses,
                )

    def answered(self, requests: Sequence[RequestState], answers: Sequence[object]) -> None:
        if self._any:
            for request, answer in zip(requests, answers, strict=True):
                if isinstance(answer, Draft):
                    request.drafter_losses = 0

    def barred(self, request: RequestState) -> bool:
        return request.drafter_losses >= _BARRED

    def apart(
        self, batches: dict[str | None, list[RequestState]]
    ) -> dict[str | None, list[RequestState]]:
        """The batches by lane, without requests that must not draft together with the others now:
        these decode plainly in this round."""
        if not self._any:
            return batches
        self._any = any(one.drafter_losses for batch in batches.values() for one in batch)
        self._turn = (self._turn + 1) % _TURNS
        chosen: dict[str | None, list[RequestState]] = {None: [*batches.get(None, ())]}
        for lane, batch in batches.items():
            if lane is not None:
                together = self._together(batch)
                chosen[lane] = together
                chosen[None] += [request for request in batch if request not in together]
        return {lane: batch for lane, batch in chosen.items() if batch}

    def _together(self, batch: Sequence[RequestState]) -> list[RequestState]:
        half = self._turn - (_TURNS - 2)
        innocent = [request for request in batch if not request.drafter_losses]
        if half < 0 and innocent:
            return innocent
        return [one for one in batch if one.drafter_losses and _half(one) == half % 2]


def _half(request: RequestState) -> int:
    return crc32(request.name.encode()) >> request.drafter_losses & 1

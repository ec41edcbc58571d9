"""Finds the requests over which drafters and verifiers are lost.

A request in a call in which a drafter is lost is a suspect, until a drafter has drafted for it
again. Suspects of one lane draft in two halves, apart from each other and from other requests, so
that every further loss leaves half as many suspects. The halves differ with each loss, as the bits
of a hash of the request's name do. After _BARRED losses a request drafts on lookups only.

The request over which verifiers are lost is found at the price of two of them. Every request in a
forward in which the verifier is lost is a suspect until a later verdict brings it a token; a chunk
of its prompt shows nothing yet. A suspect is verified alone, so that a second loss shows that it is
the cause: it fails. The others wait for one suspect's forward at a time.
"""

import logging
from collections.abc import Sequence
from zlib import crc32

from actors.coordinator.request_state import DRAFTED, RequestState
from engine.protocol import Draft

_LOG = logging.getLogger("spindle")
_BARRED = 3
_TURNS = 4
"""A lane with suspects takes turns of so many micro-batches, of which the last two have one half of
the suspects each."""


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


class VerifierSuspects:
    def __init__(self) -> None:
        self._alone = False
        """Whether the last forward that `next_batch` chose was a suspect's."""

    def lost(self, requests: Sequence[RequestState]) -> None:
        """The verifier was lost in a forward of these."""
        for request in requests:
            if request.suspect:
                _LOG.error("request %s fails: two verifiers were lost over it", request.name)
                request.fail()
            request.suspect = True

    def next_batch(self, running: Sequence[RequestState]) -> list[RequestState]:
        """What is verified next where some are suspects: one of them, or all others that are ready,
        in turn, of whatever micro-batches: these would make them wait for each other."""
        ready = [request for request in running if request.stage is DRAFTED]
        suspects = [request for request in ready if request.suspect]
        others = [request for request in ready if not request.suspect]
        self._alone = bool(suspects) and not (others and self._alone)
        return suspects[:1] if self._alone else others

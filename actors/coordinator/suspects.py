"""Finds the requests over which drafters and verifiers are lost, at the price of two of them.

Every request in a call in which a drafter is lost is a suspect, until a drafter has drafted for it
again. A suspect drafts alone, so that a second loss shows that it is the cause: from then on it
drafts on lookups only.

Every request in a forward in which the verifier is lost is a suspect until a later verdict brings
it a token; a chunk of its prompt shows nothing yet. A suspect is verified alone, so that a second
loss shows that it is the cause: it fails. The others wait for one suspect's forward at a time.
"""

import logging
from collections.abc import Sequence

from actors.coordinator.request_state import DRAFTED, RequestState
from engine.protocol import Draft

_LOG = logging.getLogger("spindle")
_BARRED = 2


class DrafterSuspects:
    def __init__(self) -> None:
        self._any = False
        """Some request may be a suspect."""
        self._alone = False
        """Whether lanes have last drafted for one suspect each."""

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
        """The batches by lane, of each either one suspect or all others, in turn: the rest decodes
        plainly in this round."""
        if not self._any:
            return batches
        self._any = any(one.drafter_losses for batch in batches.values() for one in batch)
        self._alone = not self._alone
        plain = [*batches.get(None, ())]
        chosen: dict[str | None, list[RequestState]] = {None: plain}
        for lane, batch in batches.items():
            if lane is not None:
                suspects = [request for request in batch if request.drafter_losses]
                others = [request for request in batch if not request.drafter_losses]
                first = suspects[:1] if suspects and (self._alone or not others) else others
                chosen[lane] = first
                plain += [request for request in batch if request not in first]
        return {lane: batch for lane, batch in chosen.items() if batch}


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

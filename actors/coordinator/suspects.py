"""Finds the request over which verifiers are lost, at the price of two of them.

Every request in a forward in which the verifier is lost is a suspect until a later verdict brings
it a token; a chunk of its prompt shows nothing yet. A suspect is verified alone, so that a second
loss shows that it is the cause: it fails. The others wait for one suspect's forward at a time.
"""

import logging
from collections.abc import Sequence

from actors.coordinator.request_state import DRAFTED, RequestState

_LOG = logging.getLogger("spindle")


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

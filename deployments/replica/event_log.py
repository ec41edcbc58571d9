"""Logs what happens in a replica besides its rounds: requests that leave, hosts that are lost."""

import logging

from actors.coordinator.events import (
    Event,
    LaneDown,
    LaneUp,
    Left,
    VerifierDown,
    VerifierUp,
)

_LOG = logging.getLogger(__name__)


def log_event(event: Event) -> None:
    match event:
        case LaneDown():
            _LOG.warning("drafter %s is lost: %s", event.lane, event.error)
        case LaneUp():
            _LOG.info("drafter %s is back after %.1f s", event.lane, event.seconds)
        case VerifierDown():
            _LOG.warning("the verifier is lost: %s", event.error)
        case VerifierUp():
            _LOG.info("the verifier is back after %.1f s", event.seconds)
        case Left() if not event.internal:
            statistics = event.statistics
            _LOG.info(
                "request %s left: %s, %d tokens in %d rounds, %d of %d draft tokens accepted",
                event.view.name,
                event.finish or ("failed" if event.failed else "cancelled"),
                event.view.generated,
                statistics.rounds,
                statistics.accepted,
                statistics.drafted,
            )

"""The commands of docs/operating.md find what is logged."""

import logging
import re
from pathlib import Path

import pytest

from actors.coordinator.events import LaneDown, LaneUp, VerifierDown, VerifierUp
from deployments.ingress.errors import ApiError
from deployments.ingress.metrics import IngressMetrics, RequestLog
from deployments.logs import log_event

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
LOSSES, FAILURES, _WARNINGS = re.findall(r'grep -hE "([^"]+)"', PAGE.read_text())


def test_losses_and_returns_are_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = (
        LaneDown(0.0, "tiny", "killed"),
        LaneUp(9.0, "tiny", 9.0),
        VerifierDown(0.0, "killed"),
        VerifierUp(9.0, 9.0),
    )
    for event in events:
        log_event(event)
    assert len(caplog.messages) == len(events)
    assert all(re.search(LOSSES, line) for line in caplog.messages)


def test_failed_requests_are_found_and_refused_ones_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    requests = RequestLog(IngressMetrics(), "target")
    for status in (500, 503, 429, 400):
        requests.refused(ApiError(status, "a reason"))
    found = [line for line in caplog.messages if re.search(FAILURES, line)]
    assert [re.search(r"status=(\d+)", line)[1] for line in found] == ["500", "503"]  # type: ignore[index]

"""Predicts output lengths from finished requests, without a forward of the target."""

from collections.abc import Callable

from actors.coordinator.events import Arrived, Event, Left, Verified
from policies.estimates.output_lengths import LearnedLengths
from policies.request import RequestView

_FIRST_REVISION = 16
"""Output tokens after which a prediction is made again, with those that became longer; then after
twice as many, and again."""


class LengthLearner:
    """Pass the coordinator's events to `observe`."""

    def __init__(self, lengths: LearnedLengths, predict: Callable[[str, float], None]) -> None:
        self._predicts = True
        self._lengths = lengths
        self._predict = predict
        self._served: dict[str, RequestView] = {}
        self._revise_at: dict[str, int] = {}

    def use(self, predicts: bool) -> None:
        """Whether predictions are made, for all present requests as well. Lengths are learned
        always, so that a schedule which is set later has them at once."""
        self._predicts = predicts
        for view in self._served.values():
            self._make(view)

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._served[event.view.name] = event.view
            self._revise_at[event.view.name] = _FIRST_REVISION
            self._make(event.view)
        elif isinstance(event, Verified):
            for outcome in event.outcomes:
                view = self._served.get(outcome.request)
                if view is not None and view.generated >= self._revise_at[view.name]:
                    self._revise_at[view.name] = 2 * view.generated
                    self._make(view)
        elif isinstance(event, Left) and not event.internal:
            self._served.pop(event.view.name, None)
            self._revise_at.pop(event.view.name, None)
            # What was cancelled or failed would have become longer.
            if event.finish is not None:
                self._lengths.finished(event.view)

    def _make(self, view: RequestView) -> None:
        predicted = self._lengths.predict(view) if self._predicts else None
        if predicted is not None:
            self._predict(view.name, predicted)

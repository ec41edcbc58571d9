"""Learned lengths reach the schedule of a running coordinator, and nothing but orders changes."""

import asyncio
from dataclasses import replace

from actors.coordinator.events import Arrived, Event, Left
from actors.coordinator.lengths import LengthLearner
from benchmarks.simulator.clock import run
from policies.estimates.output_lengths import LearnedLengths
from policies.request import RequestView
from policies.scheduling.baselines import lp_sjf
from tests.actors.coordinator.test_loop import GREEDY, Service, read


class Watched:
    """A learner on a service's events, and every prediction that it made."""

    def __init__(self) -> None:
        self.service = Service(schedule=lp_sjf())
        self.predicted: dict[str, list[float]] = {}
        self.views: dict[str, RequestView] = {}
        self.learner = LengthLearner(LearnedLengths(), self.predict)
        self.service.coordinator._observe = self.observe  # before any part has events
        for part in ("_verifying", "_drafting"):
            getattr(self.service.coordinator, part)._observe = self.observe

    def observe(self, event: Event) -> None:
        self.service.events.append(event)
        if isinstance(event, Arrived):
            self.views[event.view.name] = event.view
        self.learner.observe(event)

    def predict(self, name: str, tokens: float) -> None:
        self.predicted.setdefault(name, []).append(tokens)
        self.service.coordinator.predict(name, tokens)

    async def serve(self, name: str, tokens: int) -> list[int]:
        params = replace(GREEDY, max_tokens=tokens)
        tokens_read = await read(self.service.coordinator.submit(name, [5, 6, 7], params))
        await asyncio.sleep(0.01)  # until it has left
        return tokens_read


def test_finished_requests_teach_what_later_ones_are_predicted() -> None:
    async def main() -> None:
        watched = Watched()
        for number in range(8):
            await watched.serve(f"short-{number}", 6)
        assert watched.predicted == {}, "too few have finished"
        await watched.serve("later", 6)
        assert watched.predicted["later"][0] == 6
        await watched.service.end()
        assert not watched.learner._served

    run(main())


def test_a_longer_request_is_predicted_anew() -> None:
    async def main() -> None:
        watched = Watched()
        for number in range(8):
            await asyncio.gather(
                watched.serve(f"short-{number}", 6), watched.serve(f"long-{number}", 60)
            )
        watched.predicted.clear()
        await watched.serve("another", 60)
        _, *later = watched.predicted["another"]
        assert later
        assert later[-1] == 60
        await watched.service.end()

    run(main())


def test_cancelled_requests_teach_nothing_and_switching_on_predicts_present_ones() -> None:
    async def main() -> None:
        watched = Watched()
        watched.learner.use(False)
        for number in range(8):
            await watched.serve(f"short-{number}", 6)
        watched.service.coordinator.submit("cancelled", [5, 6, 7], replace(GREEDY, max_tokens=100))
        await asyncio.sleep(0.05)
        assert watched.predicted == {}
        watched.learner.use(True)
        assert "cancelled" in watched.predicted
        finished = watched.learner._lengths._finished
        watched.service.coordinator.cancel("cancelled")
        await asyncio.sleep(0.1)
        assert any(isinstance(e, Left) and e.finish is None for e in watched.service.events)
        assert watched.learner._lengths._finished == finished == 8
        await watched.service.end()

    run(main())

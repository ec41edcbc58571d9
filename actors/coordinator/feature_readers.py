"""The lanes that read the target's features, for requests as the coordinator keeps them."""

import asyncio

from actors.coordinator.events import FeaturesLost
from actors.coordinator.lanes import Lanes
from actors.coordinator.lessons import LEARNER
from actors.coordinator.request_state import RequestState
from actors.coordinator.settings import Shared
from engine.features import FeatureLanes
from engine.protocol import FeatureRange, Features, Prefix


class FeatureReaders:
    """Requests that no such lane may draft for need no features from the verifier."""

    def __init__(self, lanes: Lanes, shared: Shared) -> None:
        layers = {state.name: state.lane.feature_layers for state in lanes}
        self._most = shared.limits.feature_tokens
        self._lanes = FeatureLanes({**layers, LEARNER: shared.lessons.layers}, self._most)
        self._states = lanes
        self._lessons = shared.lessons
        self._observe = shared.observe

    def __bool__(self) -> bool:
        return len(self._lanes) > 0

    def needed(self, request: RequestState) -> FeatureRange | None:
        """For the request's next verification."""
        return self._lanes.needed(request.served, self._all_readers_of(request)) if self else None

    def keep(self, request: RequestState, features: Features) -> None:
        """What a verdict has brought."""
        self._lanes.keep(request.served, features, self._all_readers_of(request))
        if request.lacks_features:  # the verifier has computed them again
            request.lacks_features = {
                lane for lane in request.lacks_features if self._lanes.lacks(request.served, lane)
            }

    def can_draft(self, request: RequestState, lane: str | None) -> bool:
        """Whether the lane has, or can be sent, the features after which it would draft. The
        first time that it lacks some for good is reported."""
        if lane is None or self._lanes.can_draft(request.served, lane):
            return True
        if not self._lanes.lacks(request.served, lane):
            return False
        if lane not in request.lacks_features:
            request.lacks_features.add(lane)
            now = asyncio.get_running_loop().time()
            self._observe(FeaturesLost(now, request.name, lane))
        return False

    def most_to_read(self, request: RequestState, lane: str) -> int:
        """How many more committed tokens the lane can be sent."""
        known = request.served.known.get(lane, 0)
        return self._lanes.readable(request.served, lane) - known

    def behind_on_prompt(self, request: RequestState) -> list[str]:
        """The lanes that would lose features of the prompt if they read nothing before it is
        prefilled. The other half of what is kept is for tokens that are committed until a lane gets
        the request."""
        if request.prefilled or request.draft_room <= 0 or request.drafter_losses:
            return []
        return [
            lane
            for lane in self._readers_of(request)
            if 2 * request.lacks(lane) > self._most and self.most_to_read(request, lane) > 0
        ]

    def of_order(self, request: RequestState, lane: str, prefix: Prefix) -> Features | None:
        return self._lanes.of_order(request.served, lane, prefix)

    def _all_readers_of(self, request: RequestState) -> list[str]:
        lanes = self._readers_of(request)
        if lanes and request.name in self._lessons:
            lanes.append(LEARNER)
        return lanes

    def _readers_of(self, request: RequestState) -> list[str]:
        if not request.speculate:
            return []
        states = [self._states[lane] for lane in self._lanes if lane != LEARNER]
        return [
            state.name
            for state in states
            if not state.given_up
            and request.drafter in (None, state.lane.view.drafter)
            and state.name not in request.failed_lanes
        ]

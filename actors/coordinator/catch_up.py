"""Fast switching (Spin IV-C): idle lanes read tokens committed without them, which also shows which
of these their drafters would have drafted. Lanes that read features read long prompts as well."""

import asyncio
from collections.abc import Sequence

from actors.coordinator.events import CaughtUp
from actors.coordinator.feature_readers import FeatureReaders
from actors.coordinator.lanes import Lanes, LaneState, take_answer
from actors.coordinator.request_state import VERIFYING, RequestState
from actors.coordinator.settings import Policies, Shared
from engine.protocol import Draft, DraftOrder, fast_new

_WORTH_READING = 8
"""The fewest committed tokens for which an idle lane gets an order to catch up: otherwise every
round of every request would cost one, and so few can be read when the request switches."""
_SHARED = 0.005
"""The fraction of the time in which lanes that share processors with the verifier may read."""
_MOST_READING_S = 0.1
"""The most reading time that can be saved up, or overdrawn."""
_SAVING_LASTS_S = 1.0
"""Reading time is saved for so long after a verification started: time saved while no request ran
would be spent in the rounds of the next ones."""


class CatchUp:
    """An order has at most `limits.catch_up_tokens`, so that no micro-batch waits for it long;
    of a prompt as many as come with one verdict. Reading by lanes that share processors with the
    verifier slows the forward down, so it only serves to learn about their drafters."""

    def __init__(self, lanes: Lanes, features: FeatureReaders, shared: Shared) -> None:
        self._lanes = lanes
        self._features = features
        self._shared = shared
        self._most_tokens = shared.limits.catch_up_tokens
        self._most_of_prompt = shared.limits.forward_tokens
        self._reading_s = 0.0
        """Reading time left to lanes that share processors with the verifier."""
        self._saved_at_s = 0.0

    def read_prompts(self, running: Sequence[RequestState]) -> None:
        """Called in every pass: lanes that read features follow the prefill of a long prompt, or
        its first features would be gone when the selection assigns the request."""
        if not self._features:
            return
        for request in running:
            for name in self._features.behind_on_prompt(request):
                if self._lanes[name].idle:
                    order = self._order(request, name, self._most_of_prompt, score=False)
                    self._read(name, [(request, order)])

    def start(self, running: Sequence[RequestState], policies: Policies, now: float) -> None:
        """Called when a verification starts: idle lanes read the committed tokens of the requests
        that will probably switch to them."""
        self._save_reading_time(now)
        idle = [state.name for state in self._lanes if self._may_read(state)]
        if not idle:
            return
        verified = [request for request in running if request.stage is VERIFYING]
        pieces: dict[str, list[tuple[RequestState, DraftOrder]]] = {}
        left = dict.fromkeys(idle, self._most_tokens)
        for request in verified:
            served = request.served
            known, enough = served.known, len(served.committed.ids) - _WORTH_READING
            for name in idle:
                if known.get(name, 0) <= enough:
                    break
            else:
                continue
            # Also for requests that decode plainly: only this shows what drafting would gain.
            if request.drafter is not None or request.draft_room <= 0:
                continue
            lane = policies.selection.likely_next(request.name)
            if (
                lane in idle
                and lane not in request.failed_lanes
                and not request.drafter_losses
                and known.get(lane, 0) <= enough
                and left[lane] > 0
            ):
                if self._features and self._features.most_to_read(request, lane) <= 0:
                    continue
                order = self._order(request, lane, left[lane], score=True)
                pieces.setdefault(lane, []).append((request, order))
                left[lane] -= len(order.prefix.delta)
        for lane, batch in pieces.items():
            self._read(lane, batch)

    def _order(self, request: RequestState, lane: str, most: int, score: bool) -> DraftOrder:
        """`score`: whether the answer says what the drafter would have drafted."""
        features = None
        if self._features:
            most = min(most, self._features.most_to_read(request, lane))
        prefix = request.served.prefix_for(lane, most)
        if self._features:
            features = self._features.of_order(request, lane, prefix)
        return fast_new(DraftOrder, (prefix, 0, 1, score, features))

    def _read(self, lane: str, pieces: Sequence[tuple[RequestState, DraftOrder]]) -> None:
        self._lanes[lane].busy = True
        self._shared.tasks.spawn(self._read_ahead, self._lanes[lane], pieces)

    def _save_reading_time(self, now: float) -> None:
        passed_s = min(now - self._saved_at_s, _SAVING_LASTS_S)
        saved_s = self._reading_s + _SHARED * passed_s
        self._reading_s, self._saved_at_s = min(saved_s, _MOST_READING_S), now

    def _may_read(self, state: LaneState) -> bool:
        lane = state.lane
        if not state.idle or lane.always_drafts:
            return False
        return lane.own_processors or self._reading_s > 0.0

    async def _read_ahead(
        self,
        state: LaneState,
        pieces: Sequence[tuple[RequestState, DraftOrder]],
    ) -> None:
        started = asyncio.get_running_loop().time()
        requests, orders = zip(*pieces, strict=True)
        answers = await self._lanes.draft(state, requests, orders, None, self._shared.changed)
        if answers is None:
            return
        now = asyncio.get_running_loop().time()
        if not state.lane.own_processors and orders[0].score:
            # Not for prompts, which are read whatever that takes. Bounded below, because a first
            # call compiles for seconds and would else stop reading for minutes.
            self._reading_s = max(self._reading_s - (now - started), -_MOST_READING_S)
        for (request, order), answer in zip(pieces, answers, strict=True):
            read = order.prefix.base + len(order.prefix.delta)
            take_answer(request, state.name, answer, upto=read)
            if isinstance(answer, Draft) and request.lane != state.name:
                ahead = request.read_ahead
                ahead[state.name] = ahead.get(state.name, 0) + len(order.prefix.delta)
            if isinstance(answer, Draft) and answer.matched and not request.ends:
                end = read - request.served.prompt_len
                covered = request.covered[end - len(answer.matched) : end]
                self._shared.estimates.acceptance.observe_read(
                    request.name, state.name, answer.matched, covered
                )
        tokens = sum(len(order.prefix.delta) for _, order in pieces)
        self._shared.observe(CaughtUp(now, state.name, now - started, tokens))
        self._shared.changed()

"""Fast switching (Spin IV-C): idle lanes read what others have committed, and score it."""

import asyncio
from collections.abc import Callable, Sequence

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Batch, Estimates
from actors.coordinator.events import CaughtUp, Event
from actors.coordinator.lanes import Lanes, LaneState, take_answer
from actors.coordinator.request_state import VERIFYING, RequestState
from actors.coordinator.settings import Policies
from actors.hosts.protocol import HostLost
from engine.protocol import Draft, DraftOrder, new

_WORTH_READING = 8
"""Committed tokens for which an idle lane is asked to catch up: fewer can be read when the request
comes, and every round of every request would cost an order."""
_READING_SHARE = 0.005
"""Of the time, for reading ahead on lanes that share processors with the verifier: there it is
no idle time and slows the forward down, so it is done for what it teaches only."""
_SAVED_READING_S = 0.1
"""So much of it can be saved up, and owed."""
_SAVING_LASTS_S = 1.0
"""After a verification began: while nobody is served nothing is saved, for it would be spent on
those who come next, in their rounds."""


class CatchUp:
    """`most_tokens` at a time on a lane, so that no micro-batch waits long behind them."""

    def __init__(
        self,
        lanes: Lanes,
        most_tokens: int,
        estimates: Estimates,
        observe: Callable[[Event], None],
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        self._lanes = lanes
        self._most_tokens = most_tokens
        self._estimates = estimates
        self._observe = observe
        self._tasks = tasks
        self._changed = changed
        self._reading_s = 0.0
        self._saved_at_s = 0.0

    def start(self, running: Sequence[RequestState], policies: Policies, now: float) -> None:
        """While the verifier works, lanes with nothing to do read what the requests that will
        probably come to them have committed."""
        self._save_reading_time(now)
        idle = [state.name for state in self._lanes if self._may_read(state)]
        if not idle:
            return
        verified = [job for job in running if job.stage is VERIFYING]
        forward = Batch(len(verified), sum([job.view.context for job in verified]))
        pieces: dict[str, list[tuple[RequestState, DraftOrder]]] = {}
        left = dict.fromkeys(idle, self._most_tokens)
        for job in verified:
            known, enough = job.served.known, len(job.served.committed.ids) - _WORTH_READING
            for name in idle:
                if known.get(name, 0) <= enough:
                    break
            else:
                continue
            # Also for who decodes plainly: else nobody would learn that it could do better.
            if job.drafter is not None or job.draft_room <= 0:
                continue
            lane = policies.selection.likely_next(job.name)
            if (
                lane in idle
                and lane not in job.without
                and known.get(lane, 0) <= enough
                and left[lane] > 0
            ):
                prefix = job.served.prefix_for(lane, left[lane])
                pieces.setdefault(lane, []).append((job, new(DraftOrder, (prefix, 0, 1, True))))
                left[lane] -= len(prefix.delta)
        for lane, batch in pieces.items():
            self._lanes[lane].busy = True
            self._tasks.spawn(self._read_ahead, self._lanes[lane], batch, forward, policies)

    def _save_reading_time(self, now: float) -> None:
        passed_s = min(now - self._saved_at_s, _SAVING_LASTS_S)
        saved_s = self._reading_s + _READING_SHARE * passed_s
        self._reading_s, self._saved_at_s = min(saved_s, _SAVED_READING_S), now

    def _may_read(self, state: LaneState) -> bool:
        lane = state.lane
        return state.idle and not lane.free and (lane.apart or self._reading_s > 0.0)

    async def _read_ahead(
        self,
        state: LaneState,
        pieces: Sequence[tuple[RequestState, DraftOrder]],
        forward: Batch,
        policies: Policies,
    ) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            answers = await state.lane.host.draft([order for _, order in pieces], None)
        except HostLost as error:
            self._lanes.lose(state, error)
            return
        state.busy = False
        now = asyncio.get_running_loop().time()
        if not state.lane.apart:
            # A first one compiles for seconds: that shall not be the last for minutes.
            self._reading_s = max(self._reading_s - (now - begun), -_SAVED_READING_S)
        for (job, order), answer in zip(pieces, answers, strict=True):
            take_answer(job, state.name, answer, upto=order.prefix.base + len(order.prefix.delta))
            if isinstance(answer, Draft) and answer.matched and not job.ends:
                end = order.prefix.base + len(order.prefix.delta) - job.served.prompt_len
                covered = job.covered[end - len(answer.matched) : end]
                view, context = state.lane.view, job.view.context
                score = self._estimates.score(view, context, answer.matched, covered, forward)
                policies.selection.observe_score(
                    job.name, state.name, score.tokens, score.seconds, score.rounds
                )
                policies.speculation.observe_read(job.name, state.name, answer.matched, covered)
        tokens = sum(len(order.prefix.delta) for _, order in pieces)
        self._observe(CaughtUp(now, state.name, now - begun, tokens))
        self._changed()

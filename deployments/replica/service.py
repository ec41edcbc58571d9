"""The parts of one replica: its hosts, the coordinator, the current policies, and the prediction of
output lengths."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Left
from actors.coordinator.lengths import LengthLearner, Ranker, RankerText
from actors.coordinator.lessons import Lessons
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Policies
from actors.hosts.fleet import Fleet
from actors.hosts.models import ModelDrafter
from actors.hosts.protocol import HostLost
from actors.learning.replica_side import ExchangeLessons, Learning, Show
from actors.router.output_sharing import OutputSharing, Share
from actors.router.router import Exchange, Pooling
from cluster.config import AppConfig, PoliciesConfig
from deployments.replica.compile_queue import CompileQueue
from deployments.replica.hosts import limits_of
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams
from policies.catalogue import fair, make_schedule, make_selection, make_speculation
from policies.estimates.output_lengths import LearnedLengths
from policies.protocols import Schedule
from policies.request import LaneView
from policies.scheduling.self_ranked import SelfRanked

_WARM_UP = "spindle:warm-up"
_WARM_UP_PROMPT = [1] * 32
_WARM_UP_TOKENS = 12
"""More than an idle drafter needs to read ahead (actors/coordinator/catch_up.py); with a larger
model each takes a tenth of a second of the start."""

_VOCABULARIES_AFTER_S = 5.0
"""After the start: the streams that continue here after the loss of another replica come first."""

log = logging.getLogger(__name__)


class Service:
    """Must be constructed on the event loop that it runs on, outside of any request, because tasks
    that a request starts are cancelled with it."""

    def __init__(self, config: AppConfig, fleet: Fleet) -> None:
        self._fleet = fleet
        self._config = config.policies
        self._compile_queue = CompileQueue(fleet.grammars) if fleet.grammars else None
        self._observers: list[Callable[[Event], None]] = []
        self._estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
        self._text = RankerText(config.target.header_path())
        self._policies, schedule = self._make(config.policies)
        learner = config.learner and config.learner.name
        learning = [lane for lane in fleet.lanes if lane.view.drafter == learner]
        self._lessons = Lessons(
            [lane.view.name for lane in learning],
            config.limits.feature_tokens,
            learning[0].feature_layers if learning else (),
        )
        self.coordinator = Coordinator(
            fleet.verifier,
            fleet.lanes,
            self._policies,
            self._estimates,
            limits_of(config),
            config.policies.pipeline,
            self._observe,
            self._lessons,
        )
        self._learner = LengthLearner(LearnedLengths(), self.coordinator.predict)
        self._ranker = Ranker(None, fleet.verifier, self._text)
        self._observers += [self._ranker.observe, self._learner.observe, self._lessons.observe]
        self._use_length_prediction(config.policies, schedule)
        self._ranking = asyncio.create_task(self._ranker.run(self.coordinator))
        self._ranking.add_done_callback(_log_end)

    def add_observer(self, observe: Callable[[Event], None]) -> None:
        """Passes all later events to `observe`; those of the warm-up do not enter the
        statistics."""
        self._observers.append(observe)

    async def warm_up(self) -> None:
        """Serves two short requests, so that everything that compiles at first use is compiled
        before the first client's request."""
        left = asyncio.Semaphore(0)

        def watch(event: Event) -> None:
            if isinstance(event, Left):
                left.release()

        self._observers.append(watch)
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature, top_p=0.9, max_tokens=_WARM_UP_TOKENS, ignore_eos=True
            )
            stream = self.coordinator.submit(_WARM_UP, _WARM_UP_PROMPT, params, remember=False)
            async for _commit in stream:
                pass
            await left.acquire()  # finished, and removed from all hosts
        self._observers.remove(watch)

    def use(self, config: PoliciesConfig) -> None:
        """Sets the policies from the next round on. Raises ValueError naming the field."""
        if config == self._config:
            return
        policies, schedule = self._make(config)
        self.coordinator.use(policies, config.pipeline)
        self._use_length_prediction(config, schedule)
        self._policies, self._config = policies, config

    async def check_grammar(self, params: SamplingParams, tenant: str) -> None:
        """Compiles the output's grammar if it has one. Raises InvalidRequest, or Overloaded."""
        if params.grammar is not None and self._compile_queue is not None:
            await self._compile_queue.compile(params.grammar, tenant)

    async def load_vocabularies(self) -> None:
        """Loads what the first structured output would wait for, here and then in the verifier;
        drafters load it with the first one, and draft nothing meanwhile."""
        if self._fleet.grammars is not None:
            await asyncio.sleep(_VOCABULARIES_AFTER_S)
            await asyncio.wait([asyncio.wrap_future(self._fleet.grammars.load_ahead())])
            with suppress(HostLost):
                await self._fleet.load_vocabulary()

    async def pool(self, replica: str, exchange: Exchange) -> None:
        """Exchanges estimates with the other replicas, forever."""
        learners = {"acceptance": self._estimates.acceptance}
        await Pooling(replica, exchange, learners).run()

    async def learn(self, replica: str, exchange: ExchangeLessons, show: Show) -> None:
        """Exchanges lessons for versions with the trainer, forever."""
        lanes = self._fleet.lanes
        hosts = {one.view.name: one.host for one in lanes if isinstance(one.host, ModelDrafter)}
        await Learning(replica, exchange, self._lessons, hosts, show).run()

    async def share(self, replica: str, share: Share) -> None:
        """Shares past outputs with the other replicas, forever."""
        if drafters := self._fleet.keeping_outputs:
            await OutputSharing(replica, share, drafters).run()

    @property
    def limits(self) -> TargetLimits:
        return self._fleet.verifier.limits

    @property
    def lanes(self) -> list[LaneView]:
        return [lane.view for lane in self._fleet.lanes]

    def _observe(self, event: Event) -> None:
        for observe in self._observers:
            observe(event)

    def _make(self, config: PoliciesConfig) -> tuple[Policies, Schedule]:
        """The policies, and the schedule without the fairness wrapper."""
        switch = self._fleet.costs.switch
        schedule = make_schedule(config.schedule.name, config.schedule.options, switch)
        if isinstance(schedule, SelfRanked):
            self._check_chat_template(config)
        selection = make_selection(config.selection.name, config.selection.options, config.seed)
        speculation = make_speculation(
            config.speculation.name, config.speculation.options, self._estimates.calibrations
        )
        return Policies(fair(schedule, config.fairness), selection, speculation), schedule

    def _use_length_prediction(self, config: PoliciesConfig, schedule: Schedule) -> None:
        self._ranker.use(schedule if isinstance(schedule, SelfRanked) else None)
        self._learner.use(config.predicts_lengths)

    def _check_chat_template(self, config: PoliciesConfig) -> None:
        try:
            self._text.encode_chat([{"role": "user", "content": ""}])
        except ValueError as error:
            raise ValueError(
                f"policies.schedule: {config.schedule.name} has the target asked for output "
                "lengths, and its tokenizer has no chat template to ask with; choose another "
                "schedule"
            ) from error


def _log_end(ranking: asyncio.Task[None]) -> None:
    """Logs that length prediction has stopped; requests are then served in order of arrival."""
    if not ranking.cancelled() and (error := ranking.exception()) is not None:
        log.error("output lengths are no longer predicted: %r", error)

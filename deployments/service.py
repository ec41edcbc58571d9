"""The coordinator of one replica, with its models in this process."""

import itertools
from collections.abc import AsyncIterator, Sequence

import torch

from actors.coordinator import Coordinator
from actors.fleet import DrafterSpec, Fleet, TargetSpec, load
from actors.knowledge import Knowledge
from actors.settings import Limits, Policies
from cluster.config import AppConfig
from cluster.zoo.paths import cache_dir
from engine.params import SamplingParams
from engine.protocol import Commit
from policies.catalogue import fair, make_schedule, make_selection, make_speculation

_WARM_UP_PROMPT = [1] * 32
_WARM_UP_TOKENS = 24


class Service:
    """Made on the event loop that it lives on; loads and measures its models, which blocks."""

    def __init__(self, config: AppConfig) -> None:
        torch.set_num_threads(config.threads)
        self._fleet = _load(config)
        knowledge = Knowledge(self._fleet.costs, [lane.view for lane in self._fleet.lanes])
        self._coordinator = Coordinator(
            self._fleet.verifier,
            self._fleet.lanes,
            _policies(config, knowledge),
            knowledge,
            Limits(kv_tokens=config.target.kv_tokens, **config.limits.model_dump()),
        )
        self._names = itertools.count()

    @property
    def alive(self) -> bool:
        return self._coordinator.alive

    async def warm_up(self) -> None:
        """Compiles what compiles at first use, before the first reader waits for it."""
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature, top_p=0.9, max_tokens=_WARM_UP_TOKENS, ignore_eos=True
            )
            async for _commit in self.stream(_WARM_UP_PROMPT, params):
                pass

    async def stream(self, prompt: Sequence[int], params: SamplingParams) -> AsyncIterator[Commit]:
        """Raises InvalidRequest or Overloaded before the first commit; leaving it cancels."""
        stream = self._coordinator.submit(str(next(self._names)), prompt, params)
        try:
            async for commit in stream:
                yield commit
        finally:
            stream.close()


def _load(config: AppConfig) -> Fleet:
    target = TargetSpec(
        config.target.path(),
        getattr(torch, config.target.dtype),
        config.target.kv_tokens,
        config.target.swap_tokens,
    )
    drafters = [
        DrafterSpec(one.name, one.kind, one.path(), one.max_batch, one.kv_tokens)
        for one in config.drafters
    ]
    return load(target, drafters, cache_dir() / "profiles")


def _policies(config: AppConfig, knowledge: Knowledge) -> Policies:
    chosen = config.policies
    schedule = make_schedule(chosen.schedule.name, chosen.schedule.options)
    return Policies(
        fair(schedule, chosen.fairness),
        make_selection(chosen.selection.name, chosen.selection.options, chosen.seed),
        make_speculation(
            chosen.speculation.name, chosen.speculation.options, knowledge.calibrations
        ),
    )

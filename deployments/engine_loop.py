"""The engine's rounds on a thread of their own; each request's reader awaits its commits."""

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import torch
from transformers import AutoModelForCausalLM

from cluster.config import AppConfig, DrafterConfig
from engine.drafters.model import ModelDrafter, make_runner
from engine.errors import InvalidRequest, SpindleError
from engine.generate import DraftPlan, Generation
from engine.model import PackedModel
from engine.params import SamplingParams
from engine.protocol import Commit
from engine.verifiers.native import NativeVerifier


class TooManyRequests(SpindleError):
    """As many requests run and wait as the config allows."""


class EngineLoop:
    """Lives on the event loop that makes it. Only the engine's thread touches the session."""

    def __init__(self, config: AppConfig) -> None:
        torch.set_num_threads(config.threads)
        self._session = make_session(config)
        _warm_up(self._session)
        self._most = config.max_batch + config.max_waiting
        self._names = itertools.count()
        self._readers: dict[str, asyncio.Queue[Commit | Exception]] = {}
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def stream(self, prompt: Sequence[int], params: SamplingParams) -> AsyncIterator[Commit]:
        """Raises InvalidRequest or TooManyRequests before the first commit."""
        if len(self._readers) >= self._most:
            raise TooManyRequests(f"{self._most} requests are being served; try again later")
        name = str(next(self._names))
        # Bounded by the request's own max_tokens: there is at most one commit for each.
        reader = self._readers[name] = asyncio.Queue()
        self._errands.put(lambda: self._add(name, prompt, params))
        try:
            finished = False
            while not finished:
                event = await reader.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                finished = event.finish is not None
        finally:
            del self._readers[name]
            self._errands.put(lambda: self._session.cancel(name))

    def _run(self) -> None:
        try:
            while True:
                self._run_errands()
                for commit in self._session.step():
                    self._tell(commit.request, commit)
        except BaseException as error:
            for name in list(self._readers):
                self._tell(name, SpindleError(f"the engine stopped: {error!r}"))
            raise

    def _run_errands(self) -> None:
        """All that have come; waits for one while there is nothing else to do."""
        while not (self._session.active and self._errands.empty()):
            self._errands.get()()

    def _add(self, name: str, prompt: Sequence[int], params: SamplingParams) -> None:
        try:
            self._session.add(name, prompt, params)
        except InvalidRequest as error:
            self._tell(name, error)

    def _tell(self, name: str, event: Commit | Exception) -> None:
        self._loop.call_soon_threadsafe(self._deliver, name, event)

    def _deliver(self, name: str, event: Commit | Exception) -> None:
        reader = self._readers.get(name)
        if reader is not None:
            reader.put_nowait(event)


def _warm_up(session: Generation) -> None:
    """Compiles what compiles at first use, before the first reader waits for it."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=8, ignore_eos=True)
        session.add(f"warm-up at {temperature}", [1] * 32, params)
    while session.active:
        session.step()


def make_session(config: AppConfig) -> Generation:
    target = PackedModel.load(
        config.target.path(),
        dtype=getattr(torch, config.target.dtype),
        device="cpu",
        kv_tokens=config.target.kv_tokens,
    )
    verifier = NativeVerifier(target)
    if config.drafter is None:
        return Generation(verifier, max_batch=config.max_batch)
    plan = DraftPlan("drafter", config.drafter.depth)
    return Generation(
        verifier,
        [_make_drafter(config.drafter, verifier.vocab_size)],
        lambda _request, _round: plan,
        max_batch=config.max_batch,
    )


def _make_drafter(config: DrafterConfig, vocab_size: int) -> ModelDrafter:
    model = AutoModelForCausalLM.from_pretrained(config.path(), dtype=torch.float32)
    runner = make_runner(model.eval(), kv_tokens=config.kv_tokens)
    return ModelDrafter("drafter", runner, target_vocab_size=vocab_size)

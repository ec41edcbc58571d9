"""One target on several tensor-parallel ranks in lockstep: rank 0 leads, the others follow.

Each rank has its share of the weights and the KV of its own heads. A KV pool is deterministic, so
the leader sends neither slots nor blocks: it sends the calls that changed its pool, then the
forward, and the followers repeat them. Only the leader samples.

    target = LeadingModel(split(load_stock(path, dtype), place, device), place, kv_tokens=n)
    follow(PackedModel(split(load_stock(path, dtype), place, device), kv_tokens=n), place)
"""

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention.layouts import LayoutName
from engine.errors import OutOfBlocks, RankLost
from engine.families import stock_logits
from engine.hidden_states import HiddenStates
from engine.kv.cache import KVCache, KVShape
from engine.model import PackedModel, Segment, check_logits
from engine.parallel.ranks import Messages, Place, join_ranks, leave_ranks
from engine.parallel.sharding import Share, check_ranks, shard

HEARTBEATS_PER_TIMEOUT = 4
PROBE_PROMPT = range(7)

P = ParamSpec("P")
R = TypeVar("R")


def split(model: PreTrainedModel, place: Place, device: torch.device | str) -> PreTrainedModel:
    """Cuts this rank's share out of a whole model in host memory, and joins the other ranks.

    Raises InvalidTensorParallel, UnsupportedModel or RankLost. The model must be loaded before the
    ranks join, because transformers loads differently once torch.distributed is initialised.
    """
    check_ranks(model.config, place.ranks)
    prompt = torch.tensor(PROBE_PROMPT) % model.config.get_text_config(decoder=True).vocab_size
    whole = stock_logits(model, prompt)
    shard(model, Share(place.rank, place.ranks))
    join_ranks(place, torch.device(device))
    model.to(device)
    shared = stock_logits(model, prompt.to(device))
    check_logits(model, shared.cpu(), whole, f"tensor-parallel ({place.ranks} ranks)")
    return model


class PoolState(NamedTuple):
    """A summary of a KV pool, equal on ranks that are in step."""

    capacity: int
    free_blocks: int
    cached_blocks: int

    @classmethod
    def of(cls, kv: KVCache) -> "PoolState":
        return cls(kv.capacity, kv.free_blocks, kv.cached_blocks)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward, and the pool calls before it."""

    calls: Sequence[bytes]
    """Calls on the KV pool since the last forward (JournaledKV)."""
    state: PoolState
    """The leader's pool after these calls."""
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leader is idle, not lost."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The leader has closed: followers return."""


Method = Callable[Concatenate["JournaledKV", P], R]


def _journaled(method: Method[P, R]) -> Method[P, R]:
    def call(self: "JournaledKV", /, *args: P.args, **kwargs: P.kwargs) -> R:
        # Pickled now, as callers may change their lists afterwards.
        entry = pickle.dumps((method.__name__, args, kwargs))
        try:
            result = method(self, *args, **kwargs)
        except OutOfBlocks:
            self.journal.append(entry)  # it may have changed the order of eviction
            raise
        self.journal.append(entry)
        return result

    return call


class JournaledKV(KVCache):
    """A KV cache that records each call that may change it, for the followers."""

    def __init__(
        self, shape: KVShape, blocks: int, block_size: int = 16, swap_blocks: int = 0
    ) -> None:
        super().__init__(shape, blocks, block_size, swap_blocks)
        self.journal: list[bytes] = []

    open = _journaled(KVCache.open)
    reserve = _journaled(KVCache.reserve)
    unreserve = _journaled(KVCache.unreserve)
    commit = _journaled(KVCache.commit)
    truncate = _journaled(KVCache.truncate)
    release = _journaled(KVCache.release)
    swap_out = _journaled(KVCache.swap_out)
    swap_in = _journaled(KVCache.swap_in)


class LeadingModel(PackedModel):
    """Rank 0's model, used like any PackedModel.

    RankLost or any other error in a forward is final: close it and restart all ranks.
    """

    kv: JournaledKV
    kv_type = JournaledKV

    def __init__(
        self,
        model: PreTrainedModel,
        place: Place,
        *,
        kv_tokens: int,
        layout: LayoutName = "packed",
        swap_tokens: int = 0,
    ) -> None:
        super().__init__(model, kv_tokens=kv_tokens, layout=layout, swap_tokens=swap_tokens)
        self.kv.journal.clear()  # drops the load probe, which every rank ran by itself
        self._messages = Messages(place.secret)
        self._message_lock = Lock()
        """Held from a message to the end of its forward, as followers receive only in between."""
        self._closed = Event()
        self._heartbeats = Thread(
            target=self._send_heartbeats,
            args=(place.timeout_s / HEARTBEATS_PER_TIMEOUT,),
            daemon=True,
        )
        self._heartbeats.start()

    def forward(self, segments: Sequence[Segment], states: HiddenStates | None = None) -> Tensor:
        # Every rank has all of each hidden state, so followers need not take any.
        with self._message_lock:
            if self._closed.is_set():
                raise RankLost("this target was closed or lost a rank before")
            try:
                self._messages.broadcast(Step(self.kv.journal, PoolState.of(self.kv), segments))
                return super().forward(segments, states)
            except OutOfBlocks:
                raise  # on every rank, before any of them ran the model
            except BaseException:
                # Followers may wait in the middle of a layer: disconnecting ends them at once.
                self._abort()
                raise
            finally:
                self.kv.journal.clear()  # followers' forwards reserve the same rows themselves

    def close(self) -> None:
        """Stops the followers and disconnects."""
        with self._message_lock:
            if not self._closed.is_set():
                with suppress(RankLost):
                    self._messages.broadcast(
                        Step(self.kv.journal, PoolState.of(self.kv), segments=())
                    )
                    self._messages.broadcast(Stop())
                self._abort()
        self._heartbeats.join()

    def _send_heartbeats(self, interval: float) -> None:
        """Heartbeats while idle, as followers cannot tell an idle leader from a lost one."""
        while not self._closed.wait(interval):
            with self._message_lock:
                if self._closed.is_set():
                    return
                try:
                    self._messages.broadcast(Heartbeat())
                except RankLost:
                    self._abort()

    def _abort(self) -> None:
        self._closed.set()
        leave_ranks()


def follow(model: PackedModel, place: Place) -> None:
    """Repeats the leader's steps until it closes. Raises RankLost if it is gone or silent."""
    messages = Messages(place.secret)
    try:
        while not isinstance(message := messages.receive(), Stop):
            if isinstance(message, Step):
                _apply(message, model)
    finally:
        leave_ranks()


def _apply(step: Step, model: PackedModel) -> None:
    for call in step.calls:
        name, args, kwargs = pickle.loads(call)
        with suppress(OutOfBlocks):
            getattr(model.kv, name)(*args, **kwargs)
    state = PoolState.of(model.kv)
    if state != step.state:
        raise RankLost(f"out of step with the leader: KV pool {state}, the leader's {step.state}")
    with suppress(OutOfBlocks):
        model.forward(step.segments)

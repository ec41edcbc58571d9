"""One target on several ranks in lockstep: rank 0 leads and samples, the others follow.

Each rank has its share of the weights and the KV of its own heads. What a pool does depends on
nothing but its calls, so the leader sends no slots and no pages: it sends the calls that changed
its pool and then the forward, and the followers do the same with theirs.

    target = LeadingModel(split(load_stock(path, dtype), place, device), place, kv_tokens=n)
    follow(PackedModel(split(load_stock(path, dtype), place, device), kv_tokens=n))
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
from engine.errors import OutOfBlocks
from engine.families import stock_logits
from engine.kv.cache import KVCache, KVShape
from engine.model import PackedModel, Segment, check_logits
from engine.parallel.ranks import Place, RankLost, leave, listen, meet, say
from engine.parallel.sharding import Share, check_ranks, shard

BEATS_PER_TIMEOUT = 4
PROBE_PROMPT = range(7)

P = ParamSpec("P")
R = TypeVar("R")


def split(model: PreTrainedModel, place: Place, device: torch.device | str) -> PreTrainedModel:
    """Cuts this rank's share out of a whole model in host memory, and meets the other ranks.

    Raises InvalidTensorParallel, UnsupportedModel or RankLost. A model is loaded before ranks
    meet, because transformers loads differently once torch.distributed is up.
    """
    check_ranks(model.config, place.ranks)
    prompt = torch.tensor(PROBE_PROMPT) % model.config.get_text_config(decoder=True).vocab_size
    whole = stock_logits(model, prompt)
    shard(model, Share(place.rank, place.ranks))
    meet(place, torch.device(device))
    model.to(device)
    shared = stock_logits(model, prompt.to(device))
    check_logits(model, shared.cpu(), whole, f"tensor-parallel ({place.ranks} ranks)")
    return model


class PoolState(NamedTuple):
    """Equal on ranks that are in step."""

    capacity: int
    free_blocks: int
    cached_blocks: int

    @classmethod
    def of(cls, kv: KVCache) -> "PoolState":
        return cls(kv.capacity, kv.free_blocks, kv.cached_blocks)


@dataclass(frozen=True, slots=True)
class Step:
    """What the leader does next, and so do all."""

    calls: Sequence[bytes]
    """On the KV pool, see JournaledKV."""
    state: PoolState
    """Behind these calls."""
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Beat:
    """The leader is idle and well."""


@dataclass(frozen=True, slots=True)
class End:
    """The leader needs the followers no longer."""


Method = Callable[Concatenate["JournaledKV", P], R]


def _journaled(method: Method[P, R]) -> Method[P, R]:
    def call(self: "JournaledKV", /, *args: P.args, **kwargs: P.kwargs) -> R:
        # Pickled now, for callers go on with their lists.
        entry = pickle.dumps((method.__name__, args, kwargs))
        try:
            result = method(self, *args, **kwargs)
        except OutOfBlocks:
            self.journal.append(entry)  # it may have touched the order of eviction
            raise
        self.journal.append(entry)
        return result

    return call


class JournaledKV(KVCache):
    """Notes each call that changed the pool, for the followers."""

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
    """Rank 0's model: whoever uses it need not know that there are other ranks.

    RankLost, or any other error out of a forward, is final: close it and start all ranks anew.
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
        self.kv.journal.clear()  # of the probe, which every rank ran by itself
        self._speaking = Lock()
        """Held from a message to the end of its forward: followers listen only in between."""
        self._closed = Event()
        self._beats = Thread(
            target=self._beat, args=(place.timeout_s / BEATS_PER_TIMEOUT,), daemon=True
        )
        self._beats.start()

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        with self._speaking:
            if self._closed.is_set():
                raise RankLost("this target was closed or lost a rank before")
            try:
                say(Step(self.kv.journal, PoolState.of(self.kv), segments))
                return super().forward(segments)
            except OutOfBlocks:
                raise  # on every rank, before any of them ran the model
            except BaseException:
                # The others may wait in the middle of a layer: let them fail now, not late.
                self._give_up()
                raise
            finally:
                self.kv.journal.clear()  # what the forward reserved, they reserve in theirs

    def close(self) -> None:
        """Sends the followers home."""
        with self._speaking:
            if not self._closed.is_set():
                with suppress(RankLost):
                    say(Step(self.kv.journal, PoolState.of(self.kv), segments=()))
                    say(End())
                self._give_up()
        self._beats.join()

    def _beat(self, interval: float) -> None:
        """Between requests the leader says nothing, which followers cannot tell from death."""
        while not self._closed.wait(interval):
            with self._speaking:
                if self._closed.is_set():
                    return
                try:
                    say(Beat())
                except RankLost:
                    self._give_up()

    def _give_up(self) -> None:
        self._closed.set()
        leave()


def follow(model: PackedModel) -> None:
    """Does what the leader does until it closes. Raises RankLost when it is gone or silent."""
    try:
        while not isinstance(message := listen(), End):
            if isinstance(message, Step):
                _take(message, model)
    finally:
        leave()


def _take(step: Step, model: PackedModel) -> None:
    for call in step.calls:
        name, args, kwargs = pickle.loads(call)
        with suppress(OutOfBlocks):
            getattr(model.kv, name)(*args, **kwargs)
    state = PoolState.of(model.kv)
    if state != step.state:
        raise RankLost(f"out of step with the leader: KV pool {state}, the leader's {step.state}")
    with suppress(OutOfBlocks):
        model.forward(step.segments)

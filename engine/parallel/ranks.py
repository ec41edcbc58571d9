"""Connects the ranks of one tensor-parallel target, and their messages and collectives.

Everything uses torch.distributed's default group: gloo between CPUs and for messages, NCCL between
GPUs. So a process is a rank of one target only.

torch.distributed does not authenticate its peers. Messages, which are unpickled, are therefore
signed with a secret that the ranks got through Ray.
"""

import hashlib
import hmac
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from engine.errors import RankLost

LEADER = 0
_DIGEST = "sha256"


@dataclass(frozen=True, slots=True)
class Place:
    """A process's place among the ranks, given by the process that starts them."""

    rank: int
    ranks: int
    init_method: str
    """The ranks' meeting point as a torch.distributed URL: tcp://host:port or file:///path."""
    timeout_s: float
    """A rank silent for longer is lost. It must exceed any forward, and the difference between the
    ranks' loading times."""
    secret: bytes = field(repr=False)
    """Signs the leader's messages; another one for each start."""


def join_ranks(place: Place, device: torch.device) -> None:
    """Returns when all ranks have joined, or raises RankLost."""
    with _raising_rank_lost():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=place.init_method,
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=place.timeout_s),
        )


def leave_ranks() -> None:
    """Disconnects this rank. Ranks that still wait for it raise RankLost."""
    if dist.is_initialized():
        dist.destroy_process_group()


class Messages:
    """The leader's messages to all followers. Each is signed with its number, so that none can be
    forged or repeated."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._count = 0

    def broadcast(self, message: object) -> None:
        """Sends one from the leader."""
        packed = pickle.dumps(message)
        signed = bytearray(self._signature(packed) + packed)
        with _raising_rank_lost():
            dist.broadcast(torch.tensor([len(signed)]), src=LEADER)
            dist.broadcast(torch.frombuffer(signed, dtype=torch.uint8), src=LEADER)

    def receive(self) -> object:
        """The leader's next one. Raises RankLost for one that is not the leader's."""
        size = torch.zeros(1, dtype=torch.int64)
        with _raising_rank_lost():
            dist.broadcast(size, src=LEADER)
            received = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(received, src=LEADER)
        signed = received.numpy().tobytes()
        length = hashlib.new(_DIGEST).digest_size
        signature, packed = signed[:length], signed[length:]
        if not hmac.compare_digest(signature, self._signature(packed)):
            raise RankLost("a message is not signed by the leader, and was not read")
        return pickle.loads(packed)

    def _signature(self, packed: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._secret, self._count.to_bytes(8) + packed, _DIGEST)


def sum_over_ranks(partial: Tensor) -> Tensor:
    """Sums in place."""
    with _raising_rank_lost():
        dist.all_reduce(partial)
    return partial


def gather_features(share: Tensor, features: int) -> Tensor:
    """Concatenates all ranks' shares of the last dimension, as Tensor.tensor_split cuts it."""
    ranks = dist.get_world_size()
    widest = -(-features // ranks)
    padded = functional.pad(share, (0, widest - share.shape[-1]))
    shares = [torch.empty_like(padded) for _ in range(ranks)]
    with _raising_rank_lost():
        dist.all_gather(shares, padded)
    narrow, wide_ranks = divmod(features, ranks)
    return torch.cat(
        [one[..., : narrow + (rank < wide_ranks)] for rank, one in enumerate(shares)], dim=-1
    )


@contextmanager
def _raising_rank_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"a tensor-parallel rank is gone or silent: {error}") from error

"""How the ranks of one tensor-parallel target meet, and what they say to each other.

Everything goes through torch.distributed's default group: gloo between CPUs and for messages,
NCCL between GPUs. So a process is a rank of one target only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from engine.errors import SpindleError

LEADER = 0


class RankLost(SpindleError):
    """A rank is gone, or no longer in step: the target must be started anew on all ranks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands. Whoever starts the ranks says so; nothing is guessed."""

    rank: int
    ranks: int
    init_method: str
    """Where the ranks meet, in torch.distributed's words: tcp://host:port or file:///path."""
    timeout_s: float
    """How long a silent rank is waited for: when they meet (so it covers the difference between
    their loading times) and ever after (so it is longer than any forward)."""


def meet(place: Place, device: torch.device) -> None:
    """Returns when all ranks are there, or raises RankLost."""
    with _naming_the_loss():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=place.init_method,
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=place.timeout_s),
        )


def leave() -> None:
    """Leaves the others. Ranks that still wait for this one get RankLost."""
    if dist.is_initialized():
        dist.destroy_process_group()


def say(message: object) -> None:
    """The leader to all others."""
    with _naming_the_loss():
        dist.broadcast_object_list([message], src=LEADER, device=torch.device("cpu"))


def listen() -> object:
    """What the leader says next."""
    heard: list[object] = [None]
    with _naming_the_loss():
        dist.broadcast_object_list(heard, src=LEADER, device=torch.device("cpu"))
    return heard[0]


def sum_over_ranks(partial: Tensor) -> Tensor:
    """In place."""
    with _naming_the_loss():
        dist.all_reduce(partial)
    return partial


def gather_features(share: Tensor, features: int) -> Tensor:
    """Every rank's share of the last dimension, as Tensor.tensor_split cuts it, put together."""
    ranks = dist.get_world_size()
    widest = -(-features // ranks)
    padded = functional.pad(share, (0, widest - share.shape[-1]))
    shares = [torch.empty_like(padded) for _ in range(ranks)]
    with _naming_the_loss():
        dist.all_gather(shares, padded)
    narrower = features // ranks
    wide = features % ranks
    return torch.cat(
        [one[..., : narrower + (rank < wide)] for rank, one in enumerate(shares)], dim=-1
    )


@contextmanager
def _naming_the_loss() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"a tensor-parallel rank is gone or silent: {error}") from error

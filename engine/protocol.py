"""What coordinator, drafters and verifiers say to each other.

Orders carry deltas: tokens that the host has not seen and the length that they continue from.
Everything here is small, immutable and picklable, and travels from actor to actor. Hundreds are
made in a round: as NamedTuples, in less than half of the time that frozen dataclasses take.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sampling.params import SamplingParams
from policies.tree import DraftTree

new = tuple.__new__
"""Makes a NamedTuple of all its fields in half the time that calling its class takes: that goes
through a function in Python. For what every request of every round needs."""


class Start(NamedTuple):
    """What a host must know of a request once, sent with the first order and after Missing."""

    params: SamplingParams
    seed: int
    prompt_len: int
    """Committed tokens before this index are the prompt, those from it on are output."""


class Prefix(NamedTuple):
    """Where an order stands: committed[:base] has `base_hash`, and `delta` follows it."""

    request: str
    attempt: int
    round: int
    base: int
    base_hash: int
    delta: tuple[int, ...]
    start: Start | None = None


class DraftOrder(NamedTuple):
    prefix: Prefix
    depth: int
    """At most this many tokens ahead; 0 only catches up."""
    width: int = 1
    """Nodes kept at each depth; 1 drafts a chain."""
    score: bool = False
    """Also say which of the delta's tokens this drafter would have drafted."""


class VerifyOrder(NamedTuple):
    prefix: Prefix
    tree: DraftTree
    chunk: int
    """At most this many committed tokens enter the KV in this forward. While some are left
    behind (a long prefill), the tree is not looked at and no token is chosen."""
    prompt_logprobs_from: int | None = None
    """Say the log-probabilities of the prompt's tokens from this index on, at least 1: those
    before have been said. None: of none. Only while nothing of the output is committed."""


class Missing(NamedTuple):
    """The host lacks the prefix; it has `have` tokens of it. Send the rest (0: everything)."""

    request: str
    attempt: int
    round: int
    have: int


class NoRoom(NamedTuple):
    """The host's KV pool is full of requests that this batch also needs: preempt or wait."""

    request: str
    attempt: int
    round: int


class Failed(NamedTuple):
    """The host cannot do this order, and has forgotten the request; orders beside it are answered
    as ever. Sent again it would fail again."""

    request: str
    attempt: int
    round: int


class Draft(NamedTuple):
    request: str
    attempt: int
    round: int
    tree: DraftTree
    matched: tuple[bool, ...] = ()
    """Asked for by `score`: for each token of the delta's output part that was new to the drafter,
    whether its own first choice there was that token. Empty where the drafter cannot tell."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities under the model's own distribution, before any transform."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Verdict(NamedTuple):
    request: str
    attempt: int
    round: int
    accepted: tuple[int, ...]
    """Nodes of the order's tree that the target agreed with, from the root down."""
    tokens: tuple[int, ...]
    """The accepted tokens and then the target's own; empty while `pending`."""
    pending: int = 0
    """Committed tokens that are not in the KV yet: the prefill goes on in the next order."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """From the order's index on, as far as its tokens have entered the KV."""


Finish = Literal["stop", "length"]


class Commit(NamedTuple):
    """What a request's reader gets: one per verdict, never one per token."""

    request: str
    attempt: int
    first_index: int
    """Of token_ids in the output."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish: Finish | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of all of the prompt's tokens but the first, where they were asked for. They come once, with
    the first token of the output: who resubmits a request behind it has them."""


class DraftStep(NamedTuple):
    """What a speculation policy sees before each draft step (SpecServe's Algorithm 1)."""

    depth: int
    """Levels drafted so far; 0 before the first step."""
    requests: Sequence[str]
    """Those still drafting."""
    frontier: Sequence[NDArray[np.float32]]
    """For each of them, the path confidences of its deepest level; empty at depth 0."""


ContinueDrafting = Callable[[DraftStep], Sequence[bool]]
"""Which of the step's requests draft one level more."""


def to_ordered_depth(step: DraftStep) -> Sequence[bool]:
    """The policy of drafting every order to the depth that it names."""
    return [True] * len(step.requests)


class Drafter(Protocol):
    """Anything that proposes tokens. One answer per order, in their sequence."""

    @property
    def name(self) -> str: ...

    def draft(
        self, orders: Sequence[DraftOrder], go_on: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]: ...

    def forget(self, requests: Iterable[str]) -> None:
        """Drops all that is known of these requests; unknown ones are no error."""
        ...

    def roll_back(self, requests: Iterable[str]) -> None:
        """After a `draft` that raised: orders for these requests can be given once more."""
        ...


class Verifier(Protocol):
    """The target. One answer per order, in their sequence."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Tokens of prompt and output that one request may have."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens by which the model itself ends an output."""
        ...

    @property
    def verifies_trees(self) -> bool:
        """Else only chains: a tree that branches is an error."""
        ...

    def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]: ...

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of `token_ids` right behind `prompt` (self-scheduling's PrefillOnly)."""
        ...

    def forget(self, requests: Iterable[str]) -> None: ...

    def roll_back(self, requests: Iterable[str]) -> None:
        """After a `verify` that raised: orders for these requests can be given once more."""
        ...

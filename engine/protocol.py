"""The messages between the coordinator, drafters and verifiers.

Orders carry deltas: the tokens that the host has not received, and the length after which they
follow. All messages are small, immutable and picklable, because they are sent between processes:
NamedTuples, since hundreds are made in a round and frozen dataclasses take twice as long to make.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from engine.kv.blocks import KvState
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED, Scope
from policies.tree import DraftTree

fast_new = tuple.__new__
"""`fast_new(Class, fields)` makes a NamedTuple in half the time of `Class(*fields)`, which runs a
Python function. Used for what is made for every request in every round."""


class Start(NamedTuple):
    """The constant attributes of a request, sent with the first order and after Missing."""

    params: SamplingParams
    seed: int
    prompt_len: int
    """Committed tokens before this index are the prompt; the others are output."""
    scope: Scope = SHARED
    """Only requests of this scope find what the host keeps of this one."""
    remember: bool = True
    """False: its output is not kept for later requests."""


class Prefix(NamedTuple):
    """The committed tokens that an order refers to: committed[:base], whose hash is `base_hash`,
    followed by `delta`."""

    request: str
    attempt: int
    round: int
    base: int
    base_hash: int
    delta: tuple[int, ...]
    start: Start | None = None


class Features(NamedTuple):
    """The target's hidden states at consecutive committed positions, for heads."""

    first: int
    """The position of the first row."""
    rows: NDArray[Any]
    """[positions, layers · hidden size]: float32, or the bits of bfloat16 as uint16."""


class FeatureRange(NamedTuple):
    """Which features a verdict brings: those of the positions from `first` on that this forward
    adds to the KV."""

    layers: tuple[int, ...]
    """Their hidden states are side by side in each row (engine/hidden_states.py numbers them)."""
    first: int
    """The first position whose features are needed. A verifier that does not hold the request yet
    takes only earlier positions from its prefix cache, which has no features."""


class DraftOrder(NamedTuple):
    prefix: Prefix
    depth: int
    """The most tokens to draft ahead; 0 only catches up."""
    width: int = 1
    """The most nodes at each depth; 1 drafts a chain."""
    score: bool = False
    """Also report which of the delta's tokens this drafter would have drafted."""
    features: Features | None = None
    """For drafters that read them: the features of the last token before the delta and of all of
    the delta but its last token, whose features come from the next verification. So a drafter with
    n committed tokens has features of the first n - 1."""


class VerifyOrder(NamedTuple):
    prefix: Prefix
    tree: DraftTree
    chunk: int
    """The most committed tokens to process in this forward. While others remain (a long prefill),
    the tree is ignored and no token is chosen."""
    prompt_logprobs_from: int | None = None
    """Return the log-probabilities of the prompt's tokens from this index on, at least 1; those
    before have been returned. None: of no token. Only used while no output is committed."""
    features: FeatureRange | None = None
    """None: no drafter of this request reads features."""


class Missing(NamedTuple):
    """The host does not have the order's base; it has `have` tokens. The coordinator sends the rest
    (0: everything)."""

    request: str
    attempt: int
    round: int
    have: int


class NoRoom(NamedTuple):
    """The host's KV pool is full, even after evicting requests outside of this batch: the
    coordinator preempts requests or waits."""

    request: str
    attempt: int
    round: int


class Failed(NamedTuple):
    """The order raised an error, and the host has forgotten its request; other orders are answered
    as usual. The order would fail again."""

    request: str
    attempt: int
    round: int


class Draft(NamedTuple):
    request: str
    attempt: int
    round: int
    tree: DraftTree
    matched: tuple[bool, ...] = ()
    """Requested by `score`: for each output token of the delta that was new to the drafter, whether
    it would have drafted that token. Empty if the drafter cannot determine this."""


class TokenLogprobs(NamedTuple):
    """One token's log-probability and the most probable alternatives under the model's own
    distribution, before any transform."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Verdict(NamedTuple):
    request: str
    attempt: int
    round: int
    accepted: tuple[int, ...]
    """The accepted nodes of the order's tree, from the root downwards."""
    tokens: tuple[int, ...]
    """The accepted tokens, followed by the target's own token, and by those that a grammar forces
    after it; empty while `pending`."""
    pending: int = 0
    """Committed tokens that are not in the KV yet; the prefill continues with the next order."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Starting at the order's `prompt_logprobs_from`, for the prompt tokens processed in this
    forward."""
    cached: int | None = None
    """How many committed tokens came from the prefix cache, where the verifier began to hold the
    request with this order (on vLLM: at the end of its prefill); else None."""
    features: Features | None = None
    """As the order requests; None where it requests none, or the verifier has none."""


Finish = Literal["stop", "length"]


class TracedNode(TypedDict):
    """A node of the tree that a round has verified."""

    token: int
    parent: int
    """Its place among RoundTrace.nodes, or policies.tree.ROOT."""
    confidence: float
    """The calibrated probability that it is accepted if its parent is."""
    drafters: list[str]
    """All that have proposed it."""


class RoundTrace(TypedDict):
    """How a round has produced the tokens of a commit, made only for requests with a
    trace, and sent to the client unchanged."""

    round: int
    """The number of the request's rounds at this coordinator, with this one."""
    first_index: int
    """Index in the output of the round's first token."""
    drafted: int
    """Nodes that were proposed; the speculation policy has chosen those to verify among them."""
    verified: int
    accepted: int
    """Tokens that come from nodes; the others are the target's own."""
    nodes: list[TracedNode]
    """The accepted ones from the root downwards, then as many others as the trace may have."""
    draft_s: float
    verify_s: float


class Commit(NamedTuple):
    """What a request's reader receives: one per verdict, never one per token."""

    request: str
    attempt: int
    first_index: int
    """Index of token_ids[0] in the output."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish: Finish | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """For all of the prompt's tokens except the first, if requested. Sent once, with the first
    output token, so a resubmission after that token need not request them again."""
    trace: RoundTrace | None = None
    """If requested."""


class DraftStep(NamedTuple):
    """What a speculation policy is given before each draft step (SpecServe, Algorithm 1)."""

    depth: int
    """Levels drafted so far; 0 before the first step."""
    requests: Sequence[str]
    """The requests that are still drafting."""
    frontier: Sequence[NDArray[np.float32]]
    """For each request, the path confidences of its deepest level; empty at depth 0."""


ContinueDrafting = Callable[[DraftStep], Sequence[bool]]
"""For each request of the step, whether it drafts one more level."""


def to_ordered_depth(step: DraftStep) -> Sequence[bool]:
    """Drafts every order to the depth that it names."""
    return [True] * len(step.requests)


class Drafter(Protocol):
    """Anything that proposes tokens. Returns one answer per order, in the order of the orders."""

    @property
    def name(self) -> str: ...

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]: ...

    def forget(self, requests: Iterable[str]) -> None:
        """Drops all state of these requests; unknown ones are ignored."""
        ...

    def roll_back(self, requests: Iterable[str]) -> None:
        """Called after a `draft` that raised, so that these requests' orders can be sent again."""
        ...


class Verifier(Protocol):
    """The target. Returns one answer per order, in the order of the orders."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """The most tokens of prompt and output together that one request may have."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The model's own end-of-sequence tokens."""
        ...

    @property
    def verifies_trees(self) -> bool:
        """Whether the verifier takes draft trees; otherwise a tree that branches is an error."""
        ...

    @property
    def follows_grammars(self) -> bool:
        """Whether the verifier takes requests with a grammar (SamplingParams.grammar)."""
        ...

    def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]: ...

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of `token_ids` right after `prompt` (Self-scheduling's PrefillOnly)."""
        ...

    def forget(self, requests: Iterable[str]) -> None: ...

    def blocks(self) -> KvState: ...

    def roll_back(self, requests: Iterable[str]) -> None:
        """Called after a `verify` that raised, so that these requests' orders can be sent again."""
        ...

"""One order's part of a forward of the native verifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.grammar.gate import Ready
from engine.hidden_states import HiddenStates
from engine.protocol import Features, TokenLogprobs, VerifyOrder
from engine.sampling.sampler import logprobs_of_rows
from engine.soft_state import HeldRequest
from policies.tree import DraftTree


@dataclass(slots=True)
class Work:
    """One order that is being processed by a forward."""

    index: int
    order: VerifyOrder
    ready: Ready
    entering: list[int]
    """Committed tokens that this forward processes."""
    pending: int
    """Number of committed tokens left for a later forward."""
    tree: DraftTree
    """The draft tree; empty while tokens are pending."""
    prompt_logprob_rows: range
    """Prompt positions in this forward whose rows yield the log-probability of the token after
    them."""
    from_cache: int | None
    """Verdict.cached: rows taken from the prefix cache; None if the request was held before."""
    cached: int
    """Rows of the request in the KV before this forward."""
    first_row: int = 0
    """Its first row among all of the forward."""

    @property
    def request(self) -> str:
        return self.order.prefix.request

    @property
    def held(self) -> HeldRequest:
        return self.ready.held

    @property
    def wanted_rows(self) -> int:
        return 0 if self.pending else 1 + len(self.tree)


def requested_states(works: Sequence[Work]) -> HiddenStates | None:
    ranges = [work.order.features for work in works]
    layers = {layer for wanted in ranges if wanted is not None for layer in wanted.layers}
    return HiddenStates(sorted(layers)) if layers else None


def features_of(work: Work, keep: Sequence[int], states: HiddenStates | None) -> Features | None:
    """Those of the rows that stay in the KV, from the first wanted one on; `keep`: among the
    request's own rows."""
    wanted = work.order.features
    if wanted is None or states is None:
        return None
    first = max(work.cached, wanted.first)
    rows = [work.first_row + row for row in keep[first - work.cached :]]
    return Features(first, states.rows(wanted.layers, rows))


def prompt_logprobs_of(
    works: Sequence[Work], logits: Tensor
) -> tuple[dict[str, tuple[TokenLogprobs, ...]], Tensor]:
    """The prompts' log-probabilities by request, and the logits of the remaining rows
    (`wanted_rows`)."""
    if not any(work.prompt_logprob_rows for work in works):
        return {}, logits
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
    others: list[int] = []
    first = 0
    for work in works:
        rows, top_n = work.prompt_logprob_rows, work.held.start.params.prompt_logprobs
        end = first + len(rows)
        if rows and top_n is not None:
            tokens = work.held.committed.ids[rows.start + 1 : rows.stop + 1]
            prompt_logprobs[work.request] = logprobs_of_rows(logits[first:end], tokens, top_n)
        first = end + work.wanted_rows
        others += range(end, first)
    return prompt_logprobs, logits[others]


def tree_mask(entering: int, tree: DraftTree) -> NDArray[np.bool_]:
    """The attention mask: committed rows are causal; a node sees all of them, itself and its
    ancestors."""
    rows = entering + len(tree)
    mask = np.zeros((rows, rows), np.bool_)
    mask[:entering, :entering] = np.tri(entering, dtype=np.bool_)
    mask[entering:, :entering] = True
    mask[entering:, entering:] = tree.ancestor_mask()
    return mask

"""What goes into one forward: selected draft trees of requests that decode, and prompt chunks."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from actors.coordinator.estimates import Estimates
from actors.coordinator.events import VerifiedTrees
from actors.coordinator.feature_readers import FeatureReaders
from actors.coordinator.request_state import RequestState, first_tokens
from actors.coordinator.round_draft import RoundDraft
from engine.protocol import Failed, FeatureRange, Missing, NoRoom, Verdict, VerifyOrder, fast_new
from engine.request import VERIFIER
from policies.flat_trees import FlatTrees, Ints, gather_trees, prune_each, split
from policies.protocols import Candidates, RoundContext, Speculation
from policies.tree import DraftTree

_PREFILL_SHARE = 4
"""Prompts get at least this fraction (a quarter) of a forward, however much is drafted."""


class Item(NamedTuple):
    """One request's part of a forward."""

    request: RequestState
    order: VerifyOrder
    sources: Ints | None
    """MergedTree.sources of the order's tree."""


class Drafts(NamedTuple):
    """The nodes of one forward that the speculation policy has selected."""

    trees: FlatTrees
    """One for each decoding request."""
    sources: Ints | None
    """MergedTree.sources of all nodes; None where no draft was merged from several."""
    proposers: Sequence[Sequence[str]]
    """RoundDraft.proposers of each decoding request."""
    requests: Sequence[str]
    """The names of the decoding requests."""

    def with_verdicts(
        self, answers: Sequence[Verdict | Missing | NoRoom | Failed]
    ) -> VerifiedTrees:
        """`answers`: to the orders of the forward."""
        accepted = [
            answer.accepted if isinstance(answer, Verdict) and answer.tokens else None
            for answer in answers[: len(self.proposers)]
        ]
        return VerifiedTrees(self.trees, self.sources, self.proposers, accepted, self.requests)


class Forward(NamedTuple):
    """What goes into one forward."""

    items: Sequence[Item]
    """Requests that decode, then those with prompt chunks."""
    drafts: Drafts | None
    """None where nothing was drafted."""
    prefill_tokens: int


def next_forward(
    batch: Sequence[RequestState],
    most_tokens: int,
    speculation: Speculation,
    estimates: Estimates,
    features: FeatureReaders,
    now: float,
) -> Forward:
    """The forward of these requests, with at most `most_tokens` new tokens."""
    decoding = [request for request in batch if request.prefilled]
    drafted = sum([request.draft.tree.nodes for request in decoding])
    left = most_tokens - len(decoding)
    chunks = _chunks(
        [request for request in batch if not request.prefilled],
        max(left - drafted, -(-left // _PREFILL_SHARE)),
    )
    prefill_tokens = sum(chunk for _, chunk in chunks)
    whole = [request for request, chunk in chunks if chunk == request.pending]
    context = estimates.context(prefill_tokens, first_tokens=first_tokens(whole))
    items, drafts = _decode_items(decoding, most_tokens, speculation, context, now)
    items += [_prefill_item(request, chunk) for request, chunk in chunks]
    if features:
        items = [_with_features(item, features.needed(item.request)) for item in items]
    return Forward(items, drafts, prefill_tokens)


def _decode_items(
    decoding: Sequence[RequestState],
    most_tokens: int,
    speculation: Speculation,
    context: RoundContext,
    now: float,
) -> tuple[list[Item], Drafts | None]:
    """Each request's draft tree, cut down to the nodes that the speculation policy selects."""
    verified = None
    drafts = [request.draft for request in decoding]
    sources = [draft.tree.sources for draft in drafts]
    if any([draft.tree.nodes for draft in drafts]):
        trees = gather_trees([draft.tree.ref for draft in drafts])
        node_sources = _node_sources(drafts)
        proposers = [draft.proposers for draft in drafts]
        names = [request.name for request in decoding]
        context.acceptance.credit(names, trees, proposers, node_sources)
        mask = speculation.select(
            Candidates(
                [request.view for request in decoding],
                trees,
                [draft.seconds for draft in drafts],
                proposers,
                node_sources,
            ),
            context,
            now,
        )
        if node_sources is not None:
            bounds = pairwise(trees.starts.tolist())
            sources = [
                None if own is None else own[mask[begin:end]]
                for own, (begin, end) in zip(sources, bounds, strict=True)
            ]
            node_sources = node_sources[mask]
        trees = prune_each(trees, mask)
        selected = split(trees)
        verified = Drafts(trees, node_sources, proposers, names)
    else:
        selected = [DraftTree.empty()] * len(decoding)
    items = [
        fast_new(
            Item,
            (
                request,
                fast_new(
                    VerifyOrder,
                    (request.served.prefix_for(VERIFIER), tree, most_tokens, None, None),
                ),
                own,
            ),
        )
        for request, tree, own in zip(decoding, selected, sources, strict=True)
    ]
    return items, verified


def _prefill_item(request: RequestState, chunk: int) -> Item:
    served = request.served
    prefix = served.prefix_for(VERIFIER)
    order = VerifyOrder(prefix, DraftTree.empty(), chunk, served.prompt_logprobs_from)
    return Item(request, order, None)


def _with_features(item: Item, wanted: FeatureRange | None) -> Item:
    return item if wanted is None else item._replace(order=item.order._replace(features=wanted))


def _node_sources(drafts: Sequence[RoundDraft]) -> Ints | None:
    """MergedTree.sources of all drafts' nodes; None where no draft was merged from several."""
    if all([draft.tree.sources is None for draft in drafts]):
        return None
    return np.concatenate(
        [
            np.full(draft.tree.nodes, (1 << len(draft.proposers)) - 1)
            if draft.tree.sources is None
            else draft.tree.sources
            for draft in drafts
        ]
    )


def _chunks(prefilling: Sequence[RequestState], room: int) -> list[tuple[RequestState, int]]:
    """Prompt tokens for this forward, in the schedule's order. Tenants get equal parts of the room,
    and what some leave of theirs, so that no tenant waits until another's long prompts are read. A
    token too many is the first request's, so that none waits for ever where there are few."""
    pending = Counter[str]()
    for request in prefilling:
        pending[request.view.tenant] += request.pending
    rooms, left = dict[str, int](), max(0, room)
    for place, (tenant, wanted) in enumerate(sorted(pending.items(), key=itemgetter(1))):
        share, surplus = divmod(left, len(pending) - place)
        own = tenant == prefilling[0].view.tenant
        rooms[tenant] = min(wanted, share + min(1, surplus) * own)
        left -= rooms[tenant]
    chunks = []
    for request in prefilling:
        tenant = request.view.tenant
        if chunk := min(request.pending, rooms[tenant]):
            chunks.append((request, chunk))
            rooms[tenant] -= chunk
    return chunks

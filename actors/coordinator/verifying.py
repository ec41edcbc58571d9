"""The verifying side of a round: what goes into the next forward, and how verdicts are applied."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified, VerifierDown, VerifierUp
from actors.coordinator.microbatches import MicroBatchPlan
from actors.coordinator.request_state import DRAFTED, DRAFTING, READY, VERIFYING, RequestState
from actors.coordinator.round_draft import RoundDraft
from actors.coordinator.round_trace import round_trace
from actors.coordinator.settings import Limits, Policies
from actors.hosts.protocol import HostLost, KvState, VerifierHost
from engine.protocol import Commit, Failed, Missing, NoRoom, Verdict, VerifyOrder, fast_new
from engine.request import VERIFIER
from policies.flat_trees import Ints, gather_trees, prune_each, split
from policies.protocols import Candidates
from policies.request import RoundOutcome
from policies.tree import DraftTree

_LOG = logging.getLogger("spindle")
_SUSPECT_LOSSES = 2
"""Consecutive losses of the verifier after which a request is verified alone."""
_FATAL_LOSSES = 4
"""Consecutive losses, the last ones alone, after which a request fails as their cause."""
_PREFILL_SHARE = 4
"""Prompts get at least this fraction (a quarter) of a forward, however much is drafted."""


class _Item(NamedTuple):
    """One request's part of a forward."""

    request: RequestState
    order: VerifyOrder
    sources: Ints | None
    """MergedTree.sources of the order's tree."""


class Verifying:
    def __init__(
        self,
        host: VerifierHost,
        limits: Limits,
        estimates: Estimates,
        observe: Callable[[Event], None],
        tasks: Tasks,
        changed: Callable[[], None],
        always_drafting: Collection[str],
        drafters: Mapping[str, str],
    ) -> None:
        """`always_drafting`: the names of the lanes that draft for every request. `drafters`: by
        lane."""
        self._host = host
        self._limits = limits
        self._estimates = estimates
        self._observe = observe
        self._tasks = tasks
        self._changed = changed
        self._always_drafting = always_drafting
        self._drafters = drafters
        self._busy = False
        self._idle_since_s = 0.0
        self._has_suspects = False
        """Some running request may have lost the verifier _SUSPECT_LOSSES times."""

    def start(
        self,
        running: Sequence[RequestState],
        policies: Policies,
        micro_batches: MicroBatchPlan,
        now: float,
    ) -> bool:
        """Starts one forward over what is ready; returns False if the verifier is busy, or nothing
        is ready, or the barrier is not reached."""
        if self._busy:
            return False
        batch = _ready(running, micro_batches)
        if not batch:
            return False
        if self._has_suspects:
            suspects = [request for request in running if _is_suspect(request)]
            self._has_suspects = bool(suspects)
            # One alone, so that a loss shows whether it is the cause.
            batch = [request for request in batch if _is_suspect(request)][:1] or batch
        decoding = [request for request in batch if request.prefilled]
        drafted = sum([request.draft.tree.nodes for request in decoding])
        left = self._limits.forward_tokens - len(decoding)
        chunks = _chunks(
            [request for request in batch if not request.prefilled],
            max(left - drafted, left // _PREFILL_SHARE),
        )
        prefill_tokens = sum(chunk for _, chunk in chunks)
        items = self._decode_items(decoding, policies, prefill_tokens, now)
        items += [_prefill_item(request, chunk) for request, chunk in chunks]
        for item in items:
            item.request.stage = VERIFYING
        self._busy = True
        self._tasks.spawn(self._verify, items, policies, prefill_tokens, now)
        return True

    def _decode_items(
        self,
        decoding: Sequence[RequestState],
        policies: Policies,
        prefill_tokens: int,
        now: float,
    ) -> list[_Item]:
        """Each request's draft tree, cut down to the nodes that the speculation policy selects."""
        drafts = [request.draft for request in decoding]
        sources = [draft.tree.sources for draft in drafts]
        if any([draft.tree.nodes for draft in drafts]):
            trees = gather_trees([draft.tree.ref for draft in drafts])
            node_sources = _node_sources(drafts)
            mask = policies.speculation.select(
                Candidates(
                    [request.view for request in decoding],
                    trees,
                    [draft.seconds for draft in drafts],
                    [draft.proposers for draft in drafts],
                    node_sources,
                ),
                self._estimates.context(prefill_tokens),
                now,
            )
            if node_sources is not None:
                bounds = pairwise(trees.starts.tolist())
                sources = [
                    None if own is None else own[mask[begin:end]]
                    for own, (begin, end) in zip(sources, bounds, strict=True)
                ]
            selected = split(prune_each(trees, mask))
        else:
            selected = [DraftTree.empty()] * len(decoding)
        most = self._limits.forward_tokens
        return [
            fast_new(
                _Item,
                (
                    request,
                    fast_new(VerifyOrder, (request.served.prefix_for(VERIFIER), tree, most, None)),
                    own,
                ),
            )
            for request, tree, own in zip(decoding, selected, sources, strict=True)
        ]

    async def _verify(
        self,
        items: Sequence[_Item],
        policies: Policies,
        prefill_tokens: int,
        started: float,
    ) -> None:
        requests = [item.request for item in items]
        idle_s = started - self._idle_since_s
        try:
            answers = await self._host.verify([item.order for item in items])
        except HostLost as error:
            await self._recover(requests, error)
            return
        now = asyncio.get_running_loop().time()
        context = sum([request.view.prefilled for request in requests])
        # Roots and nodes: prompt chunks come without a tree.
        roots = sum([request.prefilled for request in requests])
        nodes = sum([len(item.order.tree.tokens) for item in items])
        tokens = prefill_tokens + roots + nodes
        self._estimates.calibration_buffer.learn(
            [
                (proposal, answer.tokens)
                for request, answer in zip(requests, answers, strict=True)
                if isinstance(answer, Verdict)
                for proposal in request.draft.proposals
            ]
        )
        verify_s = now - started
        prompts_s = verify_s * self._estimates.share_of_prompts(context, tokens, prefill_tokens)
        outcomes = []
        for item, answer in zip(items, answers, strict=True):
            try:
                outcome = self._apply(item, answer, now, verify_s, prompts_s)
            except Exception:
                request = item.request
                _LOG.exception("request %s fails", request.name)
                request.stage = READY
                request.fail()
                continue
            if outcome is not None:
                outcomes.append(outcome)
        self._busy = False
        self._idle_since_s = now
        internal = {request.name for request in requests if request.internal}
        if internal:
            outcomes = [outcome for outcome in outcomes if outcome.request not in internal]
        policies.speculation.observe(outcomes, now)
        policies.selection.observe(outcomes)
        policies.schedule.observe(outcomes, now)
        verified = Verified(now, verify_s, idle_s, context, tokens, prefill_tokens, tuple(outcomes))
        self._estimates.learn_verify(verified)
        self._observe(verified)
        self._changed()

    def _apply(
        self,
        item: _Item,
        answer: Verdict | Missing | NoRoom | Failed,
        now: float,
        verify_s: float,
        prompts_s: float,
    ) -> RoundOutcome | None:
        """Commits a verdict's tokens and updates the request; None where it brought no token."""
        request = item.request
        served, view = request.served, request.view
        served.round += 1
        request.stage = READY
        if not isinstance(answer, Verdict):
            request.lacks_kv = isinstance(answer, NoRoom)
            if isinstance(answer, Missing):
                served.known[VERIFIER] = answer.have
                request.prefilled = False
                request.pending = len(served.committed)
            elif isinstance(answer, Failed):
                request.fail()
            return None
        request.lacks_kv = False
        request.verifier_losses = 0
        tokens, accepted, pending = answer.tokens, len(answer.accepted), answer.pending
        committed = len(served.committed.ids)
        served.known[VERIFIER] = committed + len(tokens)
        request.prefilled = not pending
        request.pending = pending
        view.prefilled = committed - pending + accepted
        if answer.prompt_logprobs:
            served.add_prompt_logprobs(answer.prompt_logprobs)
        if not tokens:
            return None
        commit = served.commit(tokens, answer.logprobs)
        gained = len(commit.token_ids)
        draft = request.draft
        accepted_free = covered = 0
        if accepted and self._always_drafting:
            accepted_free = self._accepted_free(draft.proposers, item.sources, answer.accepted)
            covered = min(accepted_free, gained)
            request.covered += (True,) * covered
        request.covered += (False,) * (gained - covered)
        depth = draft.tree.depth
        outcome = fast_new(
            RoundOutcome,
            (
                request.name,
                draft.lane if depth else None,
                len(item.order.tree.tokens),
                depth,
                accepted,
                gained,
                now - request.slot_since_s,
                verify_s,
                draft.seconds,
                draft.caught_up,
                accepted_free,
                draft.tried,
                prompts_s,
            ),
        )
        request.slot_since_s = now
        request.statistics.add(outcome, draft.proposers)
        view.generated += gained
        if view.first_token_s is None:
            view.first_token_s = now
            request.statistics.ttft_s = now - view.arrival_s
        if commit.finish is not None:
            request.finish, request.ends = commit.finish, True
        if request.traced:
            commit = self._traced(commit, item, answer, verify_s)
        request.stream.deliver(commit)
        return outcome

    def _traced(self, commit: Commit, item: _Item, verdict: Verdict, verify_s: float) -> Commit:
        draft, rounds = item.request.draft, item.request.statistics.rounds
        drafters = [self._drafters[lane] for lane in draft.proposers]
        tree, sources = item.order.tree, item.sources
        trace = round_trace(
            commit, draft, drafters, tree, sources, verdict.accepted, rounds, verify_s
        )
        return commit._replace(trace=trace)

    def _accepted_free(
        self, proposers: Sequence[str], sources: Ints | None, accepted: Sequence[int]
    ) -> int:
        """The number of accepted nodes, from the root down, that lanes which always draft have
        proposed."""
        bits = sum(1 << bit for bit, lane in enumerate(proposers) if lane in self._always_drafting)
        if sources is None:
            return len(accepted) if bits else 0
        proposed = (sources[list(accepted)] & bits).tolist()
        return proposed.index(0) if 0 in proposed else len(proposed)

    async def _recover(self, requests: Sequence[RequestState], error: HostLost) -> None:
        """The new verifier is empty: it answers Missing and is sent the committed tokens again.
        Where recovery is given up, HostLost ends the coordinator."""
        clock = asyncio.get_running_loop().time
        lost_s = clock()
        self._observe(VerifierDown(lost_s, str(error)))
        await self._host.recover()
        self._observe(VerifierUp(clock(), clock() - lost_s))
        for request in requests:
            request.stage = READY
            request.verifier_losses += 1
            self._has_suspects |= _is_suspect(request)
        if len(requests) == 1 and requests[0].verifier_losses >= _FATAL_LOSSES:
            _LOG.error("request %s fails: verifiers are lost over it", requests[0].name)
            requests[0].fail()
        self._busy = False
        self._changed()

    async def check(self) -> None:
        """Finds the loss of an idle verifier before an order is sent to it."""
        if self._busy:
            return
        try:
            await self._host.forget(())
        except HostLost as error:
            if not self._busy:
                self._busy = True
                self._tasks.spawn(self._recover, (), error)

    async def kv_state(self) -> KvState:
        return await self._host.kv_state()

    async def forget(self, requests: Sequence[str]) -> None:
        """A lost verifier holds nothing any more; the next verification finds the loss."""
        with suppress(HostLost):
            await self._host.forget(requests)


def _ready(running: Sequence[RequestState], micro_batches: MicroBatchPlan) -> list[RequestState]:
    """With Spin's barrier, one whole micro-batch of all lanes; otherwise everything that is ready
    from any lane, never one forward per lane."""
    ready = [request for request in running if request.stage is DRAFTED]
    if not ready or not micro_batches.barrier:
        return ready
    incomplete = {request.cohort for request in running if request.stage in (READY, DRAFTING)}
    first = next((request.cohort for request in ready if request.cohort not in incomplete), None)
    return [request for request in ready if request.cohort == first]


def _is_suspect(request: RequestState) -> bool:
    return request.verifier_losses >= _SUSPECT_LOSSES


def _prefill_item(request: RequestState, chunk: int) -> _Item:
    served = request.served
    prefix = served.prefix_for(VERIFIER)
    order = VerifyOrder(prefix, DraftTree.empty(), chunk, served.prompt_logprobs_from)
    return _Item(request, order, None)


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
    """Prompt tokens for this forward, in the schedule's order."""
    chunks = []
    for request in prefilling:
        if room <= 0:
            break
        chunk = min(request.pending, room)
        chunks.append((request, chunk))
        room -= chunk
    return chunks

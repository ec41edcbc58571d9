"""The verifying side of a round: what goes into the next forward, and what its verdicts mean."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import numpy as np

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Event, Verified, VerifierDown, VerifierUp
from actors.coordinator.microbatches import Cutting
from actors.coordinator.request_state import DRAFTED, DRAFTING, READY, VERIFYING, RequestState
from actors.coordinator.settings import Limits, Policies
from actors.hosts.protocol import HostLost, KvState, VerifierHost
from engine.protocol import Failed, Missing, NoRoom, Verdict, VerifyOrder, new
from engine.request import VERIFIER
from policies.flat_trees import Ints, gather_trees, prune_each, split
from policies.protocols import Candidates
from policies.request import RoundOutcome
from policies.tree import DraftTree

_LOG = logging.getLogger("spindle")
_SUSPECT = 2
"""Verifiers lost over a request, with no verdict in between, from which on it is verified alone."""
_GUILTY = 4
"""When it has been alone with the last ones of so many, it fails: that is no coincidence."""
_PREFILL_SHARE = 4
"""Prompts get at least this fraction (a quarter) of a forward, however much is drafted."""


class Verifying:
    def __init__(
        self,
        host: VerifierHost,
        limits: Limits,
        estimates: Estimates,
        observe: Callable[[Event], None],
        tasks: Tasks,
        changed: Callable[[], None],
        free_lanes: Collection[str],
    ) -> None:
        self._host = host
        self._limits = limits
        self._estimates = estimates
        self._observe = observe
        self._tasks = tasks
        self._changed = changed
        self._free_lanes = free_lanes
        self._busy = False
        self._free_since = 0.0
        self._suspects = False
        """Some request may be one over which verifiers are lost."""

    def start(
        self, running: Sequence[RequestState], policies: Policies, cutting: Cutting, now: float
    ) -> bool:
        """One forward over what is ready, unless one is on its way or the pipeline waits."""
        if self._busy:
            return False
        batch = _ready(running, cutting)
        if not batch:
            return False
        if self._suspects:
            self._suspects = any([job.losses >= _SUSPECT for job in running])
            suspect = next((job for job in batch if job.losses >= _SUSPECT), None)
            # Alone, so that it shows which one it is that a verifier does not survive.
            batch = batch if suspect is None else [suspect]
        decoding = [job for job in batch if job.prefilled]
        drafted = sum([job.nodes for job in decoding])
        left = self._limits.forward_tokens - len(decoding)
        chunks = _chunks(
            [job for job in batch if not job.prefilled],
            max(left - drafted, left // _PREFILL_SHARE),
        )
        prefill_tokens = sum(chunk for _, chunk in chunks)
        trees = self._selected(decoding, policies, prefill_tokens, now)
        most = self._limits.forward_tokens
        orders = [
            new(VerifyOrder, (job.served.prefix_for(VERIFIER), tree, most, None))
            for job, tree in zip(decoding, trees, strict=True)
        ] + [
            VerifyOrder(
                job.served.prefix_for(VERIFIER),
                DraftTree.empty(),
                chunk,
                job.served.prompt_logprobs_from,
            )
            for job, chunk in chunks
        ]
        jobs = decoding + [job for job, _ in chunks]
        for job in jobs:
            job.stage = VERIFYING
        self._busy = True
        self._tasks.spawn(self._verify, jobs, orders, policies, prefill_tokens, now)
        return True

    def _selected(
        self, jobs: Sequence[RequestState], policies: Policies, prefill_tokens: int, now: float
    ) -> list[DraftTree]:
        """The trees cut down to what the speculation policy has verified."""
        if not any([job.nodes for job in jobs]):
            return [DraftTree.empty()] * len(jobs)
        trees, sources = gather_trees([job.draft for job in jobs]), _sources(jobs)
        mask = policies.speculation.select(
            Candidates(
                [job.view for job in jobs],
                trees,
                [job.draft_s for job in jobs],
                [job.proposers for job in jobs],
                sources,
            ),
            self._estimates.context(prefill_tokens),
            now,
        )
        if sources is not None:
            for job, (begin, end) in zip(jobs, pairwise(trees.starts.tolist()), strict=True):
                if job.sources is not None:
                    job.sources = job.sources[mask[begin:end]]
        return split(prune_each(trees, mask))

    async def _verify(
        self,
        jobs: Sequence[RequestState],
        orders: Sequence[VerifyOrder],
        policies: Policies,
        prefill_tokens: int,
        begun: float,
    ) -> None:
        idle_s = begun - self._free_since
        try:
            answers = await self._host.verify(orders)
        except HostLost as error:
            await self._recover(jobs, error)
            return
        now = asyncio.get_running_loop().time()
        context = sum([job.view.prefilled for job in jobs])
        # Roots and nodes: prompt chunks come without a tree.
        roots = sum([job.prefilled for job in jobs])
        tokens = prefill_tokens + roots + sum([len(order.tree.tokens) for order in orders])
        self._estimates.calibration_buffer.learn(
            [
                (proposal, answer.tokens)
                for job, answer in zip(jobs, answers, strict=True)
                if isinstance(answer, Verdict)
                for proposal in job.proposals
            ]
        )
        verify_s = now - begun
        prompts_s = verify_s * self._estimates.share_of_prompts(context, tokens, prefill_tokens)
        outcomes = []
        for job, order, answer in zip(jobs, orders, answers, strict=True):
            try:
                outcome = self._conclude(job, order, answer, now, verify_s, prompts_s)
            except Exception:
                _LOG.exception("request %s fails", job.name)
                job.stage = READY
                job.fail()
                continue
            if outcome is not None:
                outcomes.append(outcome)
        self._busy = False
        self._free_since = now
        internal = {job.name for job in jobs if job.internal}
        if internal:
            outcomes = [outcome for outcome in outcomes if outcome.request not in internal]
        policies.speculation.observe(outcomes, now)
        policies.selection.observe(outcomes)
        policies.schedule.observe(outcomes, now)
        verified = Verified(now, verify_s, idle_s, context, tokens, prefill_tokens, tuple(outcomes))
        self._estimates.learn_verify(verified)
        self._observe(verified)
        self._changed()

    def _conclude(
        self,
        job: RequestState,
        order: VerifyOrder,
        answer: Verdict | Missing | NoRoom | Failed,
        now: float,
        verify_s: float,
        prompts_s: float,
    ) -> RoundOutcome | None:
        """What the answer means for one request; None where it brought no token."""
        served, view = job.served, job.view
        served.round += 1
        job.stage = READY
        if not isinstance(answer, Verdict):
            job.cramped = isinstance(answer, NoRoom)
            if isinstance(answer, Missing):
                served.known[VERIFIER] = answer.have
                job.prefilled = False
                job.pending = len(served.committed)
            elif isinstance(answer, Failed):
                job.fail()
            return None
        job.cramped = False
        job.losses = 0
        tokens, accepted, pending = answer.tokens, len(answer.accepted), answer.pending
        committed = len(served.committed.ids)
        served.known[VERIFIER] = committed + len(tokens)
        job.prefilled = not pending
        job.pending = pending
        view.prefilled = committed - pending + accepted
        if answer.prompt_logprobs:
            served.hear_prompt(answer.prompt_logprobs)
        if not tokens:
            return None
        commit = served.commit(tokens, answer.logprobs)
        gained = len(commit.token_ids)
        accepted_free = covered = 0
        if accepted and self._free_lanes:
            accepted_free = self._accepted_free(job, answer.accepted)
            covered = min(accepted_free, gained)
            job.covered += (True,) * covered
        job.covered += (False,) * (gained - covered)
        depth = job.depth
        outcome = new(
            RoundOutcome,
            (
                job.name,
                job.asked if depth else None,
                len(order.tree.tokens),
                depth,
                accepted,
                gained,
                now - job.since_s,
                verify_s,
                job.draft_s,
                job.caught_up,
                accepted_free,
                job.tried,
                prompts_s,
            ),
        )
        job.since_s = now
        job.statistics.add(outcome, job.proposers)
        view.generated += gained
        if view.first_token_s is None:
            view.first_token_s = now
            job.statistics.ttft_s = now - view.arrival_s
        if commit.finish is not None:
            job.finish, job.ends = commit.finish, True
        job.stream.deliver(commit)
        return outcome

    def _accepted_free(self, job: RequestState, accepted: Sequence[int]) -> int:
        """How many of the accepted nodes, from the root down, free lanes have proposed."""
        proposers = enumerate(job.proposers)
        free = sum(1 << bit for bit, lane in proposers if lane in self._free_lanes)
        if job.sources is None:
            return len(accepted) if free else 0
        found = (job.sources[list(accepted)] & free).tolist()
        return found.index(0) if 0 in found else len(found)

    async def _recover(self, jobs: Sequence[RequestState], error: HostLost) -> None:
        """The new verifier is empty: it answers Missing and gets the committed tokens again.
        Where there will be none, HostLost ends the coordinator."""
        clock = asyncio.get_running_loop().time
        lost_s = clock()
        self._observe(VerifierDown(lost_s, str(error)))
        await self._host.recover()
        self._observe(VerifierUp(clock(), clock() - lost_s))
        for job in jobs:
            job.stage = READY
            job.losses += 1
            self._suspects |= job.losses >= _SUSPECT
        if len(jobs) == 1 and jobs[0].losses >= _GUILTY:
            _LOG.error("request %s fails: verifiers are lost over it", jobs[0].name)
            jobs[0].fail()
        self._busy = False
        self._changed()

    async def check(self) -> None:
        """Finds out whether an idle verifier is lost before a request does."""
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
        try:
            await self._host.forget(requests)
        except HostLost:
            """It has forgotten everything; the next verification brings it back."""


def _ready(running: Sequence[RequestState], cutting: Cutting) -> list[RequestState]:
    """Spin's barrier: one whole micro-batch of all lanes. Otherwise everything that is ready
    from any lane, never one forward per lane."""
    ready = [job for job in running if job.stage is DRAFTED]
    if not ready or not cutting.barrier:
        return ready
    incomplete = {job.cohort for job in running if job.stage in (READY, DRAFTING)}
    first = next((job.cohort for job in ready if job.cohort not in incomplete), None)
    return [job for job in ready if job.cohort == first]


def _sources(jobs: Sequence[RequestState]) -> Ints | None:
    """Of the nodes of all drafts."""
    if all([job.sources is None for job in jobs]):
        return None
    return np.concatenate(
        [
            np.full(job.nodes, (1 << len(job.proposers)) - 1)
            if job.sources is None
            else job.sources
            for job in jobs
        ]
    )


def _chunks(prefilling: Sequence[RequestState], room: int) -> list[tuple[RequestState, int]]:
    """Prompt tokens for this forward, in the schedule's order."""
    chunks = []
    for job in prefilling:
        if room <= 0:
            break
        chunk = min(job.pending, room)
        chunks.append((job, chunk))
        room -= chunk
    return chunks

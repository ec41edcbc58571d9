"""The verifying side of a round: one forward after the other, and how verdicts are applied."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from actors.coordinator.events import Verified, VerifierDown, VerifierUp
from actors.coordinator.feature_readers import FeatureReaders
from actors.coordinator.forward import Forward, Item, next_forward
from actors.coordinator.microbatches import ready_together
from actors.coordinator.request_state import READY, VERIFYING, RequestState
from actors.coordinator.round_draft import round_trace
from actors.coordinator.settings import Policies, Shared
from actors.coordinator.suspects import VerifierSuspects
from actors.hosts.protocol import HostLost, VerifierHost
from engine.kv.blocks import KvState
from engine.protocol import Commit, Failed, Missing, NoRoom, Verdict
from engine.request import VERIFIER
from policies.flat_trees import Ints
from policies.request import RoundOutcome

_LOG = logging.getLogger("spindle")


class Verifying:
    def __init__(
        self,
        host: VerifierHost,
        features: FeatureReaders,
        shared: Shared,
        always_drafting: Collection[str],
        drafters: Mapping[str, str],
    ) -> None:
        """`always_drafting`: the names of the lanes that draft for every request. `drafters`: by
        lane."""
        self._host = host
        self._features = features
        self._shared = shared
        self._estimates = shared.estimates
        self._always_drafting = always_drafting
        self._drafters = drafters
        self._busy = False
        self._idle_since_s = 0.0
        self._cohort = -1
        """The micro-batch of the last forward."""
        self._suspects = VerifierSuspects()

    def start(self, running: Sequence[RequestState], policies: Policies, now: float) -> bool:
        """Starts one forward over a micro-batch; returns False if the verifier is busy, or none is
        ready."""
        if self._busy:
            return False
        if any([request.suspect for request in running]):
            batch = self._suspects.next_batch(running)
        else:
            batch = ready_together(running, self._cohort)
        if not batch:
            return False
        self._cohort = batch[0].cohort
        clock = asyncio.get_running_loop().time
        began = clock()
        most, speculation = self._shared.limits.forward_tokens, policies.speculation
        forward = next_forward(batch, most, speculation, self._estimates, self._features, now)
        select_s = clock() - began
        for item in forward.items:
            item.request.stage = VERIFYING
        self._busy = True
        plain_s = self._estimates.plain_round_s(running)
        self._shared.tasks.spawn(self._verify, forward, policies, now, select_s, plain_s)
        return True

    async def _verify(
        self,
        forward: Forward,
        policies: Policies,
        started: float,
        select_s: float,
        plain_s: float,
    ) -> None:
        """`started`: when the pass began. `select_s`, `plain_s`: as in Verified."""
        items, drafts, prefill_tokens = forward
        requests = [item.request for item in items]
        idle_s = started - self._idle_since_s
        try:
            answers = await self._host.verify([item.order for item in items])
        except HostLost as error:
            await self._recover(requests, error)
            return
        now = asyncio.get_running_loop().time()
        context = sum([request.view.prefilled for request in requests])
        # A request that decodes has a root and draft nodes, a prompt chunk has neither.
        decoding = sum([request.prefilled for request in requests])
        nodes = sum([len(item.order.tree.tokens) for item in items])
        tokens = prefill_tokens + decoding + nodes
        self._estimates.calibration_buffer.learn(
            [
                (proposal, answer.tokens)
                for request, answer in zip(requests, answers, strict=True)
                if isinstance(answer, Verdict)
                for proposal in request.draft.proposals
            ]
        )
        self._shared.lessons.drafted(requests, answers)
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
        policies.selection.observe(outcomes)
        policies.schedule.observe(outcomes, now)
        verified = Verified(
            now,
            verify_s,
            idle_s,
            context,
            tokens,
            prefill_tokens,
            tuple(outcomes),
            prompts=[request.name for request in requests[decoding:]],
            drafts=None if drafts is None else drafts.with_verdicts(answers),
            select_s=select_s,
            predicted_s=self._estimates.verify_s(context, tokens),
            plain_s=plain_s,
        )
        self._estimates.learn_verify(verified)
        self._shared.observe(verified)
        self._shared.changed()

    def _apply(
        self,
        item: Item,
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
        tokens, accepted, pending = answer.tokens, len(answer.accepted), answer.pending
        committed = len(served.committed.ids)
        served.known[VERIFIER] = committed + len(tokens)
        request.prefilled = not pending
        request.pending = pending
        view.prefilled = committed - pending + accepted
        if answer.cached is not None and request.statistics.cached is None:
            request.statistics.cached = min(answer.cached, served.prompt_len)
        if answer.prompt_logprobs:
            served.add_prompt_logprobs(answer.prompt_logprobs)
        if answer.features is not None:
            self._features.keep(request, answer.features)
        if not tokens:
            return None
        request.suspect = False
        commit = served.commit(tokens, answer.logprobs)
        gained = len(commit.token_ids)
        draft = request.draft
        covered = 0
        if accepted and self._always_drafting:
            free = self._accepted_free(draft.proposers, item.sources, answer.accepted)
            covered = min(free, gained)
            request.covered += (True,) * covered
        request.covered += (False,) * (gained - covered)
        outcome = RoundOutcome(
            request=request.name,
            lane=draft.lane if draft.lane in draft.proposers else None,
            drafted=len(item.order.tree.tokens),
            depth=draft.tree.depth,
            accepted=accepted,
            committed=gained,
            seconds=now - request.slot_since_s,
            verify_s=verify_s,
            draft_s=draft.seconds,
            caught_up=draft.caught_up,
            tried=draft.tried,
            prompts_s=prompts_s,
        )
        request.slot_since_s = now
        request.statistics.add(outcome, draft.proposers)
        view.generated += gained
        if view.first_token_s is None:
            # Tokens that another replica has made count as having been on time.
            made_s = (view.generated - gained) * (view.slo.tpot_s or 0.0)
            view.first_token_s = now - made_s
            request.statistics.ttft_s = now - view.arrival_s
        if commit.finish is not None:
            request.finish, request.ends = commit.finish, True
        if request.traced:
            commit = self._traced(commit, item, answer, verify_s)
        request.stream.deliver(commit)
        return outcome

    def _traced(self, commit: Commit, item: Item, verdict: Verdict, verify_s: float) -> Commit:
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
        self._shared.observe(VerifierDown(lost_s, str(error)))
        for request in requests:
            request.stage = READY
        self._suspects.lost(requests)
        self._shared.changed()
        await self._host.recover()
        self._shared.observe(VerifierUp(clock(), clock() - lost_s))
        self._busy = False
        self._shared.changed()

    async def check(self) -> None:
        """Finds the loss of an idle verifier before an order is sent to it."""
        if self._busy:
            return
        try:
            await self._host.forget(())
        except HostLost as error:
            if not self._busy:
                self._busy = True
                self._shared.tasks.spawn(self._recover, (), error)

    async def kv_state(self) -> KvState:
        return await self._host.kv_state()

    async def forget(self, requests: Sequence[str]) -> None:
        """A lost verifier holds nothing any more; the next verification finds the loss."""
        with suppress(HostLost):
            await self._host.forget(requests)

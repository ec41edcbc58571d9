"""The model drafter: a small model that proposes chains or trees for many requests at once.

A draft call computes KV rows for the committed tokens that are new to the drafter and grows the
first level in the same forward pass, then runs one forward per further level, for all requests
together whatever their lengths, depths and widths. Rows of its own draft that were accepted are
kept, not computed again.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from transformers import PreTrainedModel

from engine.drafters.beam import DraftJob, GrowingTrees
from engine.drafters.runner import Chunk, DraftRunner, PackedRunner
from engine.errors import IncompatibleDrafter, OutOfBlocks
from engine.grammar.compiler import Grammars
from engine.grammar.gate import Matchers
from engine.model import PackedModel
from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from engine.sampling.vocabulary import ReducedVocabulary
from engine.soft_state import HeldRequest, SoftState
from policies.tree import DraftTree

MAX_REQUESTS = 4096
"""Requests whose tokens are kept; their KV is bounded by the runner's pool."""


def make_runner(
    model: PreTrainedModel, *, kv_tokens: int, reduced: ReducedVocabulary | None = None
) -> PackedRunner:
    on_gpu = model.device.type == "cuda"
    return PackedRunner(PackedModel(model, kv_tokens=kv_tokens, static_steps=on_gpu), reduced)


def check_vocabulary(drafter: str, drafter_size: int, target_size: int) -> None:
    """Drafts are token ids of the target, so both vocabularies must have the same size."""
    if drafter_size != target_size:
        raise IncompatibleDrafter(
            drafter, "vocab_size", f"{drafter_size} tokens, but the target has {target_size}"
        )


class ModelDrafter:
    """A Drafter. Requests longer than the runner's context get empty trees."""

    reuses_draft_rows = True
    """Whether rows of drafted tokens serve as committed ones if these are accepted."""

    def __init__(
        self,
        name: str,
        runner: DraftRunner,
        *,
        target_vocab_size: int,
        chunk: int = 512,
        grammars: Grammars | None = None,
    ) -> None:
        """`chunk`: at most this many committed tokens enter one forward. `grammars`: None: nothing
        is drafted for requests with a grammar."""
        check_vocabulary(name, runner.vocab_size, target_vocab_size)
        self._name = name
        self._runner = runner
        self._chunk = chunk
        self._matchers = Matchers(grammars)
        self._state = SoftState(MAX_REQUESTS, on_drop=self._release)
        self._draft_rows: dict[str, DraftTree] = {}
        """For each request with KV rows, least recently used first, the draft nodes whose rows
        follow its committed ones."""

    @property
    def name(self) -> str:
        return self._name

    def draft(
        self, orders: Sequence[DraftOrder], continue_drafting: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        states = self._accept(orders)
        accepted = [
            (order, held)
            for order, held in zip(orders, states, strict=True)
            if isinstance(held, HeldRequest)
        ]
        trees = GrowingTrees([self._job(order, held) for order, held in accepted])
        have = [
            self._reuse_rows(job, held.unchanged)
            for job, (_, held) in zip(trees.jobs, accepted, strict=True)
        ]
        growing = [number for number, job in enumerate(trees.jobs) if job.depth > 0]
        growing = _continuing(continue_drafting, trees, 0, growing)
        matched: list[list[bool]] = [[] for _ in trees.jobs]
        refused = self._run_committed(trees, have, set(growing), matched)
        self._grow(trees, [job for job in growing if job not in refused], continue_drafting)

        answers = iter(
            NoRoom(order.prefix.request, order.prefix.attempt, order.prefix.round)
            if number in refused
            else self._answer(order, trees, number, matched[number])
            for number, (order, _) in enumerate(accepted)
        )
        return [held if isinstance(held, Missing) else next(answers) for held in states]

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    @property
    def max_context(self) -> int:
        return self._runner.max_context

    def _accept(self, orders: Sequence[DraftOrder]) -> list[HeldRequest | Missing]:
        return self._state.accept([order.prefix for order in orders])

    def _job(self, order: DraftOrder, held: HeldRequest) -> DraftJob:
        tokens = held.committed.ids
        # The deepest level is proposed but never run, so it needs no rows.
        room = self._runner.max_context - len(tokens) + 1
        depth = max(0, min(order.depth, room))
        matcher, request = None, order.prefix.request
        if held.start.params.grammar is not None and depth > 0:
            matcher = self._matchers.follow(request, held)
            depth = 0 if matcher is None or matcher.is_slow else depth
        return DraftJob(request, held.start, tokens, depth, order.width, order.score, matcher)

    def _reuse_rows(self, job: DraftJob, unchanged: int) -> int:
        """Keeps the request's rows that belong to its committed tokens; returns their number.

        The last committed token always runs again: its row proposes the first draft tokens.
        """
        if len(job.committed) > self._runner.max_context:
            self._drop_rows(job.request)
            return 0
        limit = len(job.committed) - 1
        have = self._runner.open(job.request, job.committed, job.start.scope)
        drafted = self._draft_rows.pop(job.request, None)
        path: list[int] = []
        if drafted is not None:
            if have <= unchanged:
                path = drafted.follow(job.committed[have:limit])
            have = min(have, unchanged, limit)
            self._runner.keep(job.request, have, path, job.committed[have : have + len(path)])
        self._draft_rows[job.request] = DraftTree.empty()
        return have + len(path)

    def _run_committed(
        self,
        trees: GrowingTrees,
        have: list[int],
        growing: set[int],
        matched: list[list[bool]],
    ) -> set[int]:
        """Runs the committed tokens without rows, in chunks; `have` counts the rows of each job.

        The last committed token runs only for growing jobs and grows their first level. Returns
        the jobs that the KV pool has no room for.
        """
        refused: set[int] = set()
        need = [
            0
            if len(job.committed) > self._runner.max_context
            else len(job.committed) - (number not in growing)
            for number, job in enumerate(trees.jobs)
        ]
        running = [number for number in range(len(need)) if have[number] < need[number]]
        while running:
            chunks = []
            budget = self._chunk
            for number in running:
                tokens = trees.jobs[number].committed[have[number] : need[number]][:budget]
                is_last = have[number] + len(tokens) == need[number]
                if tokens:
                    grows = is_last and number in growing
                    chunks.append(Chunk(number, tokens, grows, have[number]))
                budget -= len(tokens)
            try:
                chosen = self._runner.extend(trees, chunks)
            except OutOfBlocks:
                if not self._evict_idle(trees):
                    last = running.pop()
                    refused.add(last)
                    self._drop_rows(trees.jobs[last].request)
                continue
            for chunk, tokens in zip(chunks, chosen, strict=True):
                have[chunk.job] += len(chunk.tokens)
                matched[chunk.job] += _matches(trees.jobs[chunk.job], chunk.first, tokens)
            running = [number for number in running if have[number] < need[number]]
        return refused

    def _grow(
        self, trees: GrowingTrees, drafting: list[int], continue_drafting: ContinueDrafting
    ) -> None:
        """Adds levels while trees may grow and the policy lets them."""
        for depth in count(1):
            drafting = [
                job
                for job in drafting
                if trees.jobs[job].depth > depth and len(trees.frontier(job)) > 0
            ]
            drafting = _continuing(continue_drafting, trees, depth, drafting)
            while drafting:
                try:
                    self._runner.step(trees, drafting)
                    break
                except OutOfBlocks:
                    if not self._evict_idle(trees):
                        drafting.pop()  # its tree stays as deep as it is
            if not drafting:
                return

    def roll_back(self, requests: Iterable[str]) -> None:
        for request in requests:
            self._drop_rows(request)

    def _answer(
        self, order: DraftOrder, trees: GrowingTrees, job: int, matched: Sequence[bool]
    ) -> Draft:
        tree = trees.tree(job)
        if len(tree) and self.reuses_draft_rows:
            # The deepest level has no rows: it was proposed, not run.
            rows = trees.frontier(job).start
            self._draft_rows[order.prefix.request] = trees.tree(job, rows)
        prefix = order.prefix
        return Draft(prefix.request, prefix.attempt, prefix.round, tree, tuple(matched))

    def _evict_idle(self, trees: GrowingTrees) -> bool:
        """Drops the rows of the least recently used request that is not in this batch."""
        batch = {job.request for job in trees.jobs}
        idle = next((request for request in self._draft_rows if request not in batch), None)
        if idle is not None:
            self._drop_rows(idle)
        return idle is not None

    def _drop_rows(self, request: str) -> None:
        self._draft_rows.pop(request, None)
        self._runner.release(request)

    def _release(self, request: str, _held: HeldRequest) -> None:
        self._drop_rows(request)
        self._matchers.forget([request])


def _matches(job: DraftJob, first: int, chosen: Sequence[int]) -> list[bool]:
    """Whether each choice, made after committed token first, first + 1, ..., was committed next.

    Only for output tokens, and as far as they are committed.
    """
    following = job.committed[first + 1 : first + 1 + len(chosen)]
    return [
        token == choice
        for index, (token, choice) in enumerate(zip(following, chosen, strict=False), first + 1)
        if index >= job.start.prompt_len
    ]


def _continuing(
    continue_drafting: ContinueDrafting, trees: GrowingTrees, depth: int, drafting: list[int]
) -> list[int]:
    """The jobs that the policy lets draft another level."""
    if not drafting:
        return []
    answers = continue_drafting(trees.next_step(depth, drafting))
    return [job for job, more in zip(drafting, answers, strict=True) if more]

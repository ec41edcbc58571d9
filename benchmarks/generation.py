"""Generation in one process: takes prompts and yields commits, with any drafters or none.

The smallest complete round loop: continuous batching in arrival order, chunked prefill, preemption
when the KV pool is full. For tests and benchmarks; a served replica runs actors/coordinator.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.errors import InvalidRequest, SpindleError
from engine.features import FeatureLanes
from engine.protocol import (
    Commit,
    Draft,
    Drafter,
    DraftOrder,
    Failed,
    Missing,
    NoRoom,
    Verdict,
    Verifier,
    VerifyOrder,
)
from engine.request import VERIFIER, ServedRequest, TargetLimits, admit
from engine.sampling.params import SamplingParams
from policies.tree import DraftTree


def feature_layers(drafter: Drafter) -> tuple[int, ...]:
    """The layers of the target whose hidden states this drafter reads, from its attribute of this
    name; none for most drafters."""
    layers: tuple[int, ...] = getattr(drafter, "feature_layers", ())
    return layers


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A request's drafter and draft shape in one round; None: plain decoding."""

    drafter: str | None
    depth: int = 4
    width: int = 1


PLAIN = DraftPlan(drafter=None)
ChoosePlan = Callable[[str, int], DraftPlan]
"""(request, round) → plan; replaces the selection and speculation policies."""


@dataclass(frozen=True, slots=True)
class Rejected:
    request: str
    error: InvalidRequest


@dataclass(slots=True)
class _Request:
    served: ServedRequest
    prefilled: bool = False
    """The verifier's KV holds everything but the last token, so a draft can be verified."""
    out_of_room: bool = False
    """The last order found no room in the KV pool, so the next one carries no draft."""

    @property
    def name(self) -> str:
        return self.served.name


class Generation:
    """A session; requests may be added and cancelled between rounds."""

    def __init__(
        self,
        verifier: Verifier,
        drafters: Sequence[Drafter] = (),
        choose_plan: ChoosePlan = lambda _request, _round: PLAIN,
        *,
        max_batch: int = 16,
        chunk: int = 512,
    ) -> None:
        self._verifier = verifier
        self._limits = TargetLimits(
            verifier.vocab_size,
            verifier.max_context,
            verifier.stop_token_ids,
            follows_grammars=verifier.follows_grammars,
        )
        self._drafters = {drafter.name: drafter for drafter in drafters}
        layers = {drafter.name: feature_layers(drafter) for drafter in drafters}
        self._features = FeatureLanes(layers, self._limits.max_context)
        self._choose_plan = choose_plan
        self._max_batch = max_batch
        self._chunk = chunk
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []  # in order of arrival
        self._pool_full = False

    @property
    def active(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams) -> None:
        """Admits a request, or raises InvalidRequest naming the field."""
        if any(request.name == name for request in (*self._waiting, *self._running)):
            raise InvalidRequest("request", f"{name!r} is already being served")
        self._waiting.append(_Request(admit(name, prompt, params, self._limits)))

    def cancel(self, name: str) -> None:
        """Unknown requests are ignored, since they may just have finished."""
        self._waiting = deque(request for request in self._waiting if request.name != name)
        self._remove([request for request in self._running if request.name == name])

    def step(self) -> list[Commit]:
        """One round: admit, draft, verify, commit. Errors of a drafter or verifier pass through;
        only a server isolates the request that causes one (actors/hosts/isolation.py)."""
        while self._waiting and not self._pool_full and len(self._running) < self._max_batch:
            self._running.append(self._waiting.popleft())
        batch = list(self._running)
        trees = self._draft(batch)
        answers = self._verifier.verify(
            [
                VerifyOrder(
                    request.served.prefix_for(VERIFIER),
                    tree,
                    self._chunk,
                    request.served.prompt_logprobs_from,
                    self._features.needed(request.served, self._features),
                )
                for request, tree in zip(batch, trees, strict=True)
            ]
        )
        commits = []
        for request, answer in zip(batch, answers, strict=True):
            request.served.round += 1
            request.out_of_room = isinstance(answer, NoRoom)
            if isinstance(answer, Missing):
                request.served.known[VERIFIER] = answer.have
                request.prefilled = False
            elif isinstance(answer, Failed):
                raise SpindleError(f"request {request.name!r} cannot be verified; the log says why")
            elif isinstance(answer, Verdict):
                request.served.known[VERIFIER] = len(request.served.committed) + len(answer.tokens)
                request.prefilled = not answer.pending
                request.served.add_prompt_logprobs(answer.prompt_logprobs)
                if answer.features is not None:
                    self._features.keep(request.served, answer.features, self._features)
                if answer.tokens:
                    commits.append(request.served.commit(answer.tokens, answer.logprobs))
        finished = {commit.request for commit in commits if commit.finish}
        self._remove([request for request in batch if request.name in finished])
        if any(request.out_of_room for request in self._running):
            self._preempt_youngest()
        return commits

    def _draft(self, batch: Sequence[_Request]) -> list[DraftTree]:
        """One tree for each request, empty without a drafter. Drafters run one after the other."""
        trees = [DraftTree.empty()] * len(batch)
        orders: dict[str, list[tuple[int, DraftOrder]]] = {}
        for index, request in enumerate(batch):
            plan = self._choose_plan(request.name, request.served.round)
            # A verdict adds the target's own token to the accepted ones.
            depth = min(plan.depth, request.served.params.max_tokens - request.served.produced - 1)
            if plan.drafter and request.prefilled and not request.out_of_room and depth > 0:
                if not self._features.can_draft(request.served, plan.drafter):
                    continue
                prefix = request.served.prefix_for(plan.drafter)
                features = self._features.of_order(request.served, plan.drafter, prefix)
                order = DraftOrder(prefix, depth, plan.width, features=features)
                orders.setdefault(plan.drafter, []).append((index, order))
        for drafter, lane in orders.items():
            answers = self._drafters[drafter].draft([order for _, order in lane])
            for (index, _), answer in zip(lane, answers, strict=True):
                served = batch[index].served
                if isinstance(answer, Draft):
                    trees[index] = answer.tree
                    served.known[drafter] = len(served.committed)
                else:
                    served.known[drafter] = answer.have if isinstance(answer, Missing) else 0
        return trees

    def _remove(self, requests: Sequence[_Request]) -> None:
        names = {request.name for request in requests}
        self._running = [request for request in self._running if request.name not in names]
        self._pool_full = self._pool_full and not names
        self._verifier.forget(names)
        for drafter in self._drafters.values():
            drafter.forget(names)

    def _preempt_youngest(self) -> None:
        """Frees the youngest request's KV, which is recomputed later from its committed tokens.

        An older request is never preempted for a younger one, so every request finishes.
        """
        if len(self._running) > 1:
            youngest = self._running.pop()
            self._verifier.forget([youngest.name])
            youngest.served.known.pop(VERIFIER, None)
            youngest.prefilled = youngest.out_of_room = False
            self._waiting.appendleft(youngest)
            self._pool_full = True  # until a request leaves


def generate(
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    drafter: Drafter | None = None,
    depth: int = 4,
    width: int = 1,
    max_batch: int = 16,
    chunk: int = 512,
) -> Iterator[Commit | Rejected]:
    """Yields the commits of all prompts; a request's name is its prompt's index."""
    plan = DraftPlan(drafter.name, depth, width) if drafter else PLAIN
    session = Generation(
        verifier,
        [drafter] if drafter else [],
        lambda _request, _round: plan,
        max_batch=max_batch,
        chunk=chunk,
    )
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for index, (prompt, own_params) in enumerate(zip(prompts, each, strict=True)):
        try:
            session.add(str(index), prompt, own_params)
        except InvalidRequest as error:
            yield Rejected(str(index), error)
    while session.active:
        yield from session.step()

"""The model drafter against beam search from scratch; what it keeps, recomputes and refuses."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.drafters.beam import GrowingTrees
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import Chunk, DraftRunner, PackedRunner
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel
from engine.protocol import Draft, DraftOrder, DraftStep, Missing, to_ordered_depth
from engine.sampling.params import SamplingParams
from policies.flat_trees import flatten, prune_each, split
from policies.tree import DraftTree
from tests import reference
from tests.checkpoints import CONTEXT, VOCAB, eager_llama, llama
from tests.engine.drafters.orders import Stream, assert_equal, beam_search
from tests.policies.tree_lists import path_confidence

GREEDY = SamplingParams(temperature=0)
SEEDED = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.01)
PENALISED = SamplingParams(
    temperature=0.8,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    logit_bias={7: 3.0, 8: -4.0},
    min_tokens=4,
    stop_token_ids=(7,),
)
BIASED = SamplingParams(temperature=0.8, logit_bias={7: 6.0, 8: 5.0, 9: -50.0})
NOT_YET_STOPPED = SamplingParams(temperature=0, min_tokens=4, stop_token_ids=tuple(range(60)))
PROMPT = [5, 9, 2, 6, 5, 3]
KV_TOKENS = 1024
CONFIDENCE = 0.02
"""Tolerance: raw confidence leaves out the noise of unlikely tokens
(engine/sampling/cpu_kernels.py)."""


class RecordingRunner(PackedRunner):
    """A runner that records which committed tokens each forward adds."""

    def __init__(self, kv_tokens: int = KV_TOKENS, static_steps: bool = False) -> None:
        """`static_steps`: as on a GPU, but without graphs."""
        super().__init__(PackedModel(llama(), kv_tokens=kv_tokens, static_steps=static_steps))
        self.entered: list[dict[str, list[int]]] = []
        """Committed tokens by request, one dict per forward."""
        self.steps = 0

    def extend(self, trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[list[int]]:
        chosen = super().extend(trees, chunks)
        self.entered.append({trees.jobs[one.job].request: list(one.tokens) for one in chunks})
        return chosen

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        super().step(trees, drafting)
        self.steps += 1

    def take_entered(self) -> dict[str, list[int]]:
        """The committed tokens added since the last call, by request."""
        entered: dict[str, list[int]] = {}
        for forward in self.entered:
            for request, tokens in forward.items():
                entered.setdefault(request, []).extend(tokens)
        self.entered = []
        return entered


@pytest.fixture
def runner() -> RecordingRunner:
    return RecordingRunner()


def drafter_on(runner: DraftRunner, chunk: int = 512) -> ModelDrafter:
    return ModelDrafter("drafter", runner, target_vocab_size=VOCAB, chunk=chunk)


def trees_of(
    drafter: ModelDrafter,
    orders: Sequence[DraftOrder],
    continue_drafting: Callable[[DraftStep], Sequence[bool]] = to_ordered_depth,
) -> list[DraftTree]:
    answers = drafter.draft(orders, continue_drafting)
    assert [answer.request for answer in answers] == [order.prefix.request for order in orders]
    drafts = [answer for answer in answers if isinstance(answer, Draft)]
    assert len(drafts) == len(answers)
    return [draft.tree for draft in drafts]


@pytest.mark.parametrize("static_steps", [False, True])
@pytest.mark.parametrize("params", [GREEDY, SEEDED, FILTERED, PENALISED, BIASED, NOT_YET_STOPPED])
@pytest.mark.parametrize(("depth", "width"), [(5, 1), (3, 4)])
def test_a_tree_equals_beam_search_from_scratch(
    params: SamplingParams, depth: int, width: int, static_steps: bool
) -> None:
    """With noise at each node's position and penalties along each node's path."""
    runner = RecordingRunner(static_steps=static_steps)
    for seed in range(4):
        stream = Stream(f"seed {seed}", [*PROMPT, seed], params, seed)
        stream.committed.extend([7, 11])  # output, which presence and frequency penalties count
        expected = beam_search(
            lambda before: reference.forward(eager_llama(), before)[-1], stream, depth, width
        )
        tree = stream.draft(drafter_on(runner), depth, width)
        assert len(tree) >= depth
        assert_equal(tree, expected, CONFIDENCE)


@pytest.mark.parametrize("static_steps", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_drafting_in_deltas_equals_drafting_at_once(seed: int, static_steps: bool) -> None:
    """Whatever was accepted or rewritten, and whichever requests share the batch."""
    rng = np.random.default_rng(seed)
    drafter = drafter_on(RecordingRunner(static_steps=static_steps))
    streams = [
        Stream(str(number), rng.integers(VOCAB, size=int(rng.integers(1, 90))).tolist(), params, 3)
        for number, params in enumerate((GREEDY, SEEDED, FILTERED, PENALISED, GREEDY))
    ]
    for _ in range(6):
        batch = [stream for stream in streams if rng.random() < 0.7]
        shapes = [(int(rng.integers(0, 5)), int(rng.integers(1, 5))) for _ in batch]
        orders = [stream.order(*shape) for stream, shape in zip(batch, shapes, strict=True)]
        fresh = drafter_on(RecordingRunner())
        for stream, shape, tree in zip(batch, shapes, trees_of(drafter, orders), strict=True):
            assert len(tree) <= shape[0] * shape[1]
            copy = Stream(stream.name, stream.committed.ids, stream.params, stream.seed)
            copy.prompt_len = stream.prompt_len
            assert_equal(tree, copy.draft(fresh, *shape))
            accept_some(stream, tree, rng)
        for stream in streams:
            if stream not in batch:  # as if another drafter had drafted for it
                stream.committed.extend(rng.integers(VOCAB, size=3).tolist())


def accept_some(stream: Stream, tree: DraftTree, rng: np.random.Generator) -> None:
    """Commits as a verdict would; now and then rewrites committed tokens."""
    if rng.random() < 0.2:
        stream.committed.truncate(int(rng.integers(len(stream.committed))))
        stream.seen = min(stream.seen, len(stream.committed))
    elif len(tree):
        path = tree.path(int(rng.integers(len(tree))))
        stream.committed.extend(tree.tokens[path].tolist())
    stream.committed.extend([int(rng.integers(VOCAB))])


def test_rows_of_an_accepted_branch_are_not_computed_again(runner: RecordingRunner) -> None:
    drafter = drafter_on(runner)
    stream = Stream("a", PROMPT, SEEDED)
    tree = stream.draft(drafter, depth=3, width=4)
    runner.take_entered()
    # A path to a node of the last level other than the first one.
    path = max((tree.path(node) for node in range(len(tree))), key=lambda path: (len(path), path))
    assert path != list(range(len(path)))
    *with_rows, without_row = tree.tokens[path].tolist()
    stream.committed.extend([*with_rows, without_row, 50])
    again = stream.draft(drafter, depth=3, width=4)
    assert runner.take_entered() == {"a": [without_row, 50]}
    fresh = Stream("fresh", stream.committed.ids, SEEDED)
    assert_equal(again, fresh.draft(drafter, depth=3, width=4))


def test_depth_zero_only_catches_up(runner: RecordingRunner) -> None:
    drafter = drafter_on(runner)
    stream = Stream("a", PROMPT, GREEDY)
    assert len(stream.draft(drafter, depth=0)) == 0
    # The last token's row would propose a first level, so it does not run yet.
    assert runner.take_entered() == {"a": PROMPT[:-1]}
    tree = stream.draft(drafter, depth=3)
    assert runner.take_entered() == {"a": PROMPT[-1:]}
    assert_equal(tree, Stream("b", PROMPT, GREEDY).draft(drafter, depth=3))


def first_nodes(tree: DraftTree, nodes: int) -> DraftTree:
    return split(prune_each(flatten([tree]), np.arange(len(tree)) < nodes))[0]


def test_the_policy_decides_before_each_level_which_requests_go_on(runner: RecordingRunner) -> None:
    drafter = drafter_on(runner)
    whole = Stream("whole", PROMPT, GREEDY).draft(drafter, depth=3, width=2)
    steps: list[DraftStep] = []

    def policy(step: DraftStep) -> list[bool]:
        steps.append(step)
        stops_at = {"none": 0, "one": 1, "all": 9}
        return [step.depth < stops_at[request] for request in step.requests]

    streams = [Stream(name, PROMPT, GREEDY) for name in ("none", "one", "all", "catch-up")]
    depths = (3, 3, 3, 0)
    runner.steps = 0
    orders = [stream.order(depth, 2) for stream, depth in zip(streams, depths, strict=True)]
    empty, one_level, full, _ = trees_of(drafter, orders, policy)
    assert len(empty) == 0
    assert_equal(one_level, first_nodes(whole, 2))
    assert_equal(full, whole)
    assert [(step.depth, list(step.requests)) for step in steps] == [
        (0, ["none", "one", "all"]),
        (1, ["one", "all"]),
        (2, ["all"]),
    ]
    assert [len(frontier) for frontier in steps[0].frontier] == [0, 0, 0]
    path = path_confidence(full)
    assert steps[1].frontier[1].tolist() == pytest.approx(path[:2].tolist())
    assert steps[2].frontier[0].tolist() == pytest.approx(path[2:4].tolist())
    assert runner.steps == 2, "a forward for a request that stopped"


def test_a_prompt_longer_than_a_chunk_enters_in_chunks(runner: RecordingRunner) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(VOCAB, size=size).tolist() for size in (50, 3, 21)]
    streams = [Stream(str(size), prompt, SEEDED) for size, prompt in enumerate(prompts)]
    trees = trees_of(drafter_on(runner, chunk=16), [stream.order(3, 2) for stream in streams])
    forwards = [sum(len(tokens) for tokens in forward.values()) for forward in runner.entered]
    assert forwards == [16, 16, 16, 16, 10]
    assert runner.take_entered() == {str(i): prompt for i, prompt in enumerate(prompts)}
    for tree, prompt in zip(trees, prompts, strict=True):
        assert_equal(tree, Stream("whole", prompt, SEEDED).draft(drafter_on(runner), 3, 2))
        runner.release("whole")


def test_a_request_beyond_the_context_gets_an_empty_tree(runner: RecordingRunner) -> None:
    drafter = drafter_on(runner)
    rng = np.random.default_rng(0)
    lengths = (CONTEXT - 2, CONTEXT, CONTEXT + 1, 5)
    streams = [Stream(str(n), rng.integers(VOCAB, size=n).tolist(), GREEDY) for n in lengths]
    trees = trees_of(drafter, [stream.order(depth=6) for stream in streams])
    # The last level is proposed at position CONTEXT and needs no row.
    assert [len(tree) for tree in trees] == [3, 1, 0, 6]
    streams[1].committed.extend([1])
    assert len(streams[1].draft(drafter, depth=6)) == 0
    streams[1].committed.truncate(CONTEXT - 1)
    streams[1].seen = CONTEXT - 1
    assert len(streams[1].draft(drafter, depth=6)) == 2


@pytest.mark.parametrize(("kv_tokens", "levels"), [(128, (3, 3)), (144, (6, 3)), (256, (6, 6))])
def test_a_tree_stops_growing_when_the_pool_is_full(
    kv_tokens: int, levels: tuple[int, int]
) -> None:
    """Each request of 62 tokens has two rows left in its block; a third level needs none."""
    drafter = drafter_on(RecordingRunner(kv_tokens=kv_tokens))
    streams = [Stream("a", [5] * 62, GREEDY), Stream("b", [6] * 62, GREEDY)]
    trees = trees_of(drafter, [stream.order(depth=6) for stream in streams])
    fresh = drafter_on(RecordingRunner())
    for stream, tree, depth in zip(streams, trees, levels, strict=True):
        expected = Stream(stream.name, stream.committed.ids, GREEDY).draft(fresh, depth=6)
        assert_equal(tree, first_nodes(expected, depth))


def test_the_least_recently_used_request_is_evicted() -> None:
    runner = RecordingRunner(kv_tokens=192)
    drafter = drafter_on(runner)
    streams = {name: Stream(name, [ord(name) % 90] * 50, GREEDY) for name in "abc"}
    for name in "abca":
        streams[name].draft(drafter, depth=2)
    newcomer = Stream("new", [4] * 50, GREEDY)
    newcomer.draft(drafter, depth=2)
    runner.take_entered()
    for name in "acb":
        streams[name].committed.extend([1])
        streams[name].draft(drafter, depth=1)
    entered = runner.take_entered()
    assert entered["a"] == entered["c"] == [1]
    assert entered["b"] == streams["b"].committed.ids


def test_missing_prefixes_are_reported_and_the_other_requests_drafted(
    runner: RecordingRunner,
) -> None:
    drafter = drafter_on(runner)
    known, unknown, changed = (Stream(name, PROMPT, GREEDY) for name in ("k", "u", "c"))
    for stream in (known, changed):
        stream.draft(drafter, depth=2)
    for stream in (known, unknown, changed):
        stream.seen = len(PROMPT)
        stream.committed.extend([4, 5])
    wrong = changed.order(depth=2)
    wrong = wrong._replace(prefix=wrong.prefix._replace(base_hash=1))
    lacks, draft, differs = drafter.draft([unknown.order(depth=2), known.order(depth=2), wrong])
    assert lacks == Missing("u", 0, 1, have=0)
    assert differs == Missing("c", 0, 2, have=0)
    assert isinstance(draft, Draft)
    for stream in (unknown, changed):  # resent from the start, as have=0 asks
        stream.seen = 0
        assert_equal(stream.draft(drafter, depth=2), draft.tree)


def test_a_drafter_of_another_vocabulary_is_refused() -> None:
    runner = RecordingRunner()
    with pytest.raises(IncompatibleDrafter, match="'other': vocab_size: 97 tokens, but the target"):
        ModelDrafter("other", runner, target_vocab_size=VOCAB + 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_score_marks_committed_tokens_that_the_drafter_would_have_drafted(
    temperature: float,
) -> None:
    """For the output alone, across chunks, and beside a request whose tree grows."""
    params = SamplingParams(temperature=temperature, presence_penalty=0.3)
    stream = Stream("scored", [3, 4, 5], params, seed=6)
    other = Stream("other", [9, 8], params)
    expected = []
    witness = drafter_on(RecordingRunner())
    rng = np.random.default_rng(0)
    for _ in range(20):
        drafted = int(stream.draft(witness, 1).tokens[0])
        committed = drafted if rng.random() < 0.5 else int(rng.integers(VOCAB))
        expected.append(committed == drafted)
        stream.committed.extend([committed])
    stream.seen = 0
    order = stream.order(0)._replace(score=True)
    scored, _grown = drafter_on(RecordingRunner(), chunk=7).draft([order, other.order(2)])
    assert isinstance(scored, Draft)
    assert scored.matched == tuple(expected)
    assert 4 < sum(expected) < 20

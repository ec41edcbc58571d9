"""A request's trace agrees with its tokens, and costs others nothing."""

import asyncio
from itertools import chain

import numpy as np

from actors.coordinator.round_draft import MOST_NODES, MergedTree, RoundDraft, round_trace
from engine.protocol import Commit, RoundTrace
from policies.flat_trees import flatten
from policies.tree import ROOT, DraftTree
from tests.actors.coordinator.test_loop import PARAMS, PROMPTS, Service, plainly


async def commits_of(service: Service, number: int, traced: bool) -> list[Commit]:
    name, prompt, params = str(number), PROMPTS[number], PARAMS[number]
    stream = service.coordinator.submit(name, prompt, params, traced=traced)
    commits = [commit async for commit in stream]
    if traced:
        traces = [commit.trace for commit in commits if commit.trace is not None]
        statistics = stream.statistics
        assert [trace["round"] for trace in traces] == [*range(1, statistics.rounds + 1)]
        assert sum(trace["verified"] for trace in traces) == statistics.drafted
        assert sum(trace["accepted"] for trace in traces) <= statistics.accepted
    return commits


def path_tokens(trace: RoundTrace) -> list[int]:
    """The tokens of the accepted nodes, each of which must be the child of the one before."""
    path = trace["nodes"][: trace["accepted"]]
    assert [node["parent"] for node in path] == [ROOT, *range(len(path))][: len(path)]
    return [node["token"] for node in path]


async def test_a_trace_says_who_has_proposed_each_token_and_changes_none() -> None:
    service = Service()
    numbers = range(len(PROMPTS))
    answers = await asyncio.gather(
        *(commits_of(service, number, traced=number % 2 == 0) for number in numbers)
    )
    streams = [[*chain(*(one.token_ids for one in commits))] for commits in answers]
    assert streams == plainly(PROMPTS, PARAMS)
    traced = [commit for commits in answers[::2] for commit in commits]
    proposed = set()
    for commit in traced:
        trace = commit.trace
        assert trace is not None
        assert trace["first_index"] == commit.first_index
        assert path_tokens(trace) == list(commit.token_ids[: trace["accepted"]])
        assert trace["drafted"] >= trace["verified"] == len(trace["nodes"])
        for node in trace["nodes"]:
            assert node["drafters"]
            assert 0 <= node["confidence"] <= 1
            proposed |= set(node["drafters"])
    assert {"near", "far", "ngram"} >= proposed >= {"near", "ngram"}
    assert sum(commit.trace["accepted"] for commit in traced if commit.trace) > 10
    assert all(commit.trace is None for commits in answers[1::2] for commit in commits)
    await service.end()


def test_a_trace_is_bounded_and_keeps_the_accepted_path() -> None:
    """A bush of 300 nodes, after which a chain is accepted whose last node is cut off by the end
    of the output."""
    bush = [ROOT] * 300
    tree = DraftTree.build(range(303), [*bush, 7, 300, 301], [0.003] * 300 + [0.5] * 3)
    accepted = [7, 300, 301, 302]
    commit = Commit("r", 0, 10, (7, 300, 301), None, "length")
    sources = np.array([0b01] * 300 + [0b11] * 3)
    draft = RoundDraft(MergedTree((flatten([tree]), 0), 303, 4, sources), seconds=0.1)
    trace = round_trace(commit, draft, ["a", "b"], tree, sources, accepted, 5, 0.2)
    assert trace["verified"] == 303
    assert len(trace["nodes"]) == MOST_NODES
    assert path_tokens(trace) == [7, 300, 301]
    assert [node["drafters"] for node in trace["nodes"][:4]] == [["a"], *[["a", "b"]] * 3]
    assert all(node["parent"] == ROOT for node in trace["nodes"][4:])

"""Replicas die under a stream at every token: the client sees one uninterrupted answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ray.exceptions import RayActorError

from actors.coordinator.stream import Statistics
from deployments import messages
from deployments.ingress import failover as failover_module
from deployments.ingress.api import Api
from deployments.ingress.clients import trusted
from deployments.ingress.errors import ApiError
from deployments.ingress.failover import FailoverStream
from deployments.messages import Message, StreamRequest
from engine.sampling.params import SamplingParams
from tests.deployments.local import (
    Handle,
    LocalReplicas,
    counted,
    local_api,
    make_config,
    within,
)
from tests.deployments.serving import request

Dying = tuple[Api, LocalReplicas]
Fields = dict[str, Any]
TOKENS = 24
PLAIN: Fields = {
    "model": "target",
    "prompt": "Count to 7",
    "max_tokens": TOKENS,
    "seed": 3,
    "ignore_eos": True,
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_module, "_BACK_OFF_S", 0.001)
    monkeypatch.setattr(failover_module, "_RETRY_FULL_S", 0.001)


def dies_at(request: StreamRequest) -> int | None:
    """The tenant names at which output token each attempt's replica dies."""
    deaths = [int(token) for token in request["tenant"].split()]
    return deaths[request["attempt"]] if request["attempt"] < len(deaths) else None


@asynccontextmanager
async def dying() -> AsyncIterator[Dying]:
    config = make_config(limits={"max_batch": 64, "max_waiting": 64})
    async with local_api(config, dies_at) as (api, replicas):
        yield api, replicas
        await asyncio.sleep(0.01)
        assert not replicas.streams, "every stream is closed"


def without_statistics(choice: Fields) -> Fields:
    """The part of a choice that must not depend on deaths."""
    kept = {key: value for key, value in choice.items() if key != "spindle"}
    return {**kept, "seed": choice["spindle"]["seed"]}


def expected(choice: Fields) -> Fields:
    """The choice without deaths, up to the rounding of other batches."""
    logprobs = choice["logprobs"]
    if logprobs is not None:
        logprobs = {
            **logprobs,
            "token_logprobs": pytest.approx(logprobs["token_logprobs"], abs=1e-4),
            "top_logprobs": [pytest.approx(top, abs=1e-4) for top in logprobs["top_logprobs"]],
        }
    return without_statistics({**choice, "logprobs": logprobs})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 2.0, "temperature": 0.5},
        {"min_tokens": 12, "ignore_eos": False, "logit_bias": {"1": 8}},
        {"logprobs": 3},
        {"logprobs": 2, "echo": True},
        {"n": 3},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
@within(dying)
async def test_a_death_at_any_token_changes_nothing(app: Dying, fields: Fields) -> None:
    api, _ = app
    request = {**PLAIN, **fields}
    undisturbed = await api.generate(request)
    shortest = undisturbed["usage"]["completion_tokens"] // len(undisturbed["choices"])
    twice = ["3 9", "0 0", "5 5", "7 12"]
    deaths = [str(token) for token in range(shortest)] + twice
    disturbed = await asyncio.gather(*(api.generate(request, trusted(death)) for death in deaths))
    same = [expected(choice) for choice in undisturbed["choices"]]
    for death, answer in zip(deaths, disturbed, strict=True):
        assert [without_statistics(choice) for choice in answer["choices"]] == same, death
        assert counted(answer) == counted(undisturbed)
    attempts = [answer["choices"][0]["spindle"]["attempts"] for answer in disturbed]
    assert attempts == [2] * shortest + [3] * len(twice)


@within(dying)
async def test_a_stop_string_is_found_across_the_cut(app: Dying) -> None:
    api, _ = app
    whole = (await api.generate(PLAIN))["choices"][0]["text"]
    start = len(whole) // 2
    stop = whole[start : start + 6]
    request = {**PLAIN, "stop": stop}
    undisturbed = await api.generate(request)
    assert undisturbed["choices"][0]["text"] == whole[: whole.find(stop)]
    last = undisturbed["usage"]["completion_tokens"]
    assert last < TOKENS
    rounds = undisturbed["choices"][0]["spindle"]["rounds"]
    assert 0 < rounds <= last, "reported although the choice ended before the replica's stream"
    deaths = [str(token) for token in range(last)]
    for answer in await asyncio.gather(
        *(api.generate(request, trusted(death)) for death in deaths)
    ):
        assert without_statistics(answer["choices"][0]) == without_statistics(
            undisturbed["choices"][0]
        )
        assert counted(answer) == counted(undisturbed)


@pytest.mark.parametrize("death", ["", "0", "7", "11 13"])
@within(dying)
async def test_a_trace_covers_every_token_once_over_all_replicas(app: Dying, death: str) -> None:
    api, _ = app
    request = {**PLAIN, "spindle": {"trace": True}, "return_token_ids": True}
    chunks = [chunk async for chunk in api.stream(request, trusted(death))]
    choices = [chunk["choices"][0] for chunk in chunks]
    traces = [choice["spindle"]["trace"] for choice in choices]
    for choice, trace in zip(choices, traces, strict=True):
        assert [token["id"] for token in trace["tokens"]] == choice["token_ids"]
    drafted = [
        (token["id"], trace["nodes"][token["node"]]["id"])
        for trace in traces
        for token in trace["tokens"]
        if token["node"] is not None
    ]
    assert len(drafted) > 4
    assert all(one == other for one, other in drafted)
    text = "".join(token["text"] for trace in traces for token in trace["tokens"])
    assert text == "".join(choice["text"] for choice in choices)
    assert {trace["attempt"] for trace in traces} <= {*range(1, len(death.split()) + 2)}
    assert traces[-1]["attempt"] == len(death.split()) + 1
    assert choices[-1]["spindle"]["attempts"] == traces[-1]["attempt"], "beside the statistics"
    assert sum(len(choice["token_ids"]) for choice in choices) == TOKENS


@within(dying)
async def test_prompt_and_output_are_resubmitted_separately_with_the_same_seed(app: Dying) -> None:
    api, replicas = app
    request = {name: value for name, value in PLAIN.items() if name != "seed"}
    await api.generate(request, trusted("9"))
    first, second = replicas.requests
    assert (second["prompt_ids"], second["params"]) == (first["prompt_ids"], first["params"])
    assert (first["attempt"], first["output_ids"]) == (0, [])
    assert second["attempt"] == 1
    assert 0 < len(second["output_ids"]) <= 9


@pytest.mark.parametrize("streamed", [False, True])
@within(dying)
async def test_a_request_that_kills_every_replica_is_given_up(app: Dying, streamed: bool) -> None:
    api, replicas = app
    if streamed:
        last = [chunk async for chunk in api.stream(PLAIN, trusted("5 5 5 5"))][-1]
    else:
        last = await api.generate(PLAIN, trusted("5 5 5 5"))
    assert last["error"]["status"] == 503
    assert len(replicas.requests) == 3, "limits.resubmits is 2"


@within(dying)
async def test_a_client_that_goes_away_is_not_resubmitted(app: Dying) -> None:
    api, replicas = app
    chunks = api.stream({**PLAIN, "max_tokens": 400}, trusted("300"))
    async for _ in chunks:
        break
    await chunks.aclose()
    await asyncio.sleep(0.05)
    assert len(replicas.requests) == 1
    assert not replicas.streams


Script = list[Message | Exception]


class ScriptedReplicas(Handle):
    """One script per dispatch, for messages that no healthy replica sends."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.requests: list[StreamRequest] = []
        self.lost: list[str] = []

    async def _stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        self.requests.append(request)
        for line in self._scripts.pop(0):
            if isinstance(line, Exception):
                raise line
            yield line


def commit(first: int, *tokens: int, finish: Any = None, rounds: int = 1) -> Message:
    return {
        "kind": "commit",
        "trace": None,
        "first_index": first,
        "token_ids": list(tokens),
        "logprobs": None,
        "prompt_logprobs": None,
        "finish": finish,
        "statistics": Statistics(
            rounds, 3 * rounds, 2 * rounds, {"near": rounds}, 0.25, 0.5, 16 * rounds
        ),
    }


ACCEPTED: Message = {"kind": "accepted", "replica": "a"}
FULL: Message = {"kind": "refused", "status": 429, "message": "full", "param": None}
REQUEST = request("x", prompt_ids=[1], params=SamplingParams(seed=0))


async def run_scripts(
    *scripts: Script,
) -> tuple[list[int], ScriptedReplicas, FailoverStream, ApiError | None]:
    replicas, tokens = ScriptedReplicas(*scripts), list[int]()
    failover_stream = FailoverStream(
        REQUEST, replicas, (), make_config().limits, replicas.lost.append
    )
    try:
        await failover_stream.open()
        async for one in failover_stream.commits():
            assert one["first_index"] == len(tokens)
            tokens += one["token_ids"]
    except ApiError as error:
        return tokens, replicas, failover_stream, error
    finally:
        failover_stream.close()
    return tokens, replicas, failover_stream, None


async def test_tokens_that_are_held_already_are_dropped() -> None:
    again: Script = [ACCEPTED, commit(0, 5, 6), commit(1, 6, 7, 8), commit(4, 9, finish="stop")]
    tokens, _, _, error = await run_scripts([ACCEPTED, commit(0, 5, 6, 7), RayActorError()], again)
    assert (tokens, error) == ([5, 6, 7, 8, 9], None)


async def test_a_gap_is_a_loss() -> None:
    tokens, replicas, _, _ = await run_scripts(
        [ACCEPTED, commit(0, 5), commit(2, 7)], [ACCEPTED, commit(1, 6, 7, finish="length")]
    )
    assert tokens == [5, 6, 7]
    assert replicas.requests[1]["output_ids"] == [5]


async def test_an_accepted_request_waits_while_the_other_replicas_are_full() -> None:
    lost: Script = [ACCEPTED, commit(0, 5), RayActorError()]
    full: Script = [FULL]
    tokens, replicas, _, error = await run_scripts(
        lost, *[full] * 5, [ACCEPTED, commit(1, 6, finish="stop")]
    )
    assert (tokens, error) == ([5, 6], None)
    assert replicas.requests[-1]["attempt"] == 1, "only losses count"


@pytest.mark.parametrize(
    ("failed", "status"),
    [
        (messages.failed("the reader has stalled", retry=True), None),
        (messages.failed("the reader has stalled", retry=False), 503),
        (messages.failed_by_defect("cmpl"), 500),
    ],
)
async def test_a_failure_is_retried_if_it_allows_that(failed: Message, status: int | None) -> None:
    tokens, replicas, _, error = await run_scripts(
        [ACCEPTED, commit(0, 5), failed], [ACCEPTED, commit(1, 6, finish="stop")]
    )
    if status is None:
        assert (tokens, error) == ([5, 6], None)
    else:
        assert error is not None
        assert (error.status, len(replicas.requests)) == (status, 1)


async def test_statistics_add_up_over_attempts() -> None:
    tokens, replicas, failover_stream, _ = await run_scripts(
        [ACCEPTED, commit(0, 5, rounds=1), commit(1, 6, rounds=2), RayActorError()],
        [ACCEPTED, RayActorError()],
        [ACCEPTED, commit(2, 7, rounds=1), commit(3, 8, finish="stop", rounds=3)],
    )
    assert tokens == [5, 6, 7, 8]
    # Cached are those of the first attempt.
    assert failover_stream.statistics == Statistics(5, 15, 10, {"near": 5}, 0.5, 0.5, 32)
    assert replicas.lost == ["a", "a"], "each time that the replica has the request"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("accepting", [["c"], []])
async def test_a_request_is_refused_for_lack_of_capacity_only_by_all_replicas(
    status: int, accepting: list[str]
) -> None:
    class Routed(ScriptedReplicas):
        """Serve's router: it avoids the replicas that it is given, and names its choice."""

        async def _stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
            request["replicas"] = ["a", "b", "c"]
            request["routed_to"] = min({*request["replicas"]} - {*request["avoid"]})
            accepts = request["routed_to"] in accepting
            self._scripts = [[ACCEPTED if accepts else {**FULL, "status": status}]]  # type: ignore[list-item]
            async for message in super()._stream(request):
                yield message

    replicas = Routed()
    stream = FailoverStream(REQUEST, replicas, (), make_config().limits, replicas.lost.append)
    if accepting:
        await stream.open()
    else:
        with pytest.raises(ApiError, match="full"):
            await stream.open()
    assert [one["avoid"] for one in replicas.requests] == [[], ["a"], ["a", "b"]]
    assert not replicas.lost

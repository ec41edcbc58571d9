"""Replicas die under a stream at every token: the client sees one uninterrupted answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from ray.exceptions import RayActorError

from deployments import messages
from deployments.ingress import failover as failover_module
from deployments.ingress.api import Api
from deployments.ingress.clients import trusted
from deployments.ingress.errors import ApiError
from deployments.ingress.failover import FailoverStream
from deployments.messages import Message, StreamRequest
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED
from policies.request import Slo
from tests.deployments.local import (
    LocalReplicas,
    Method,
    Response,
    counted,
    local_api,
    make_config,
)

Result = TypeVar("Result")
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


def run(test: Callable[[Api, LocalReplicas], Awaitable[Result]]) -> Result:
    async def with_api() -> Result:
        config = make_config(limits={"max_batch": 64, "max_waiting": 64})
        async with local_api(config, dies_at) as (api, replicas):
            result = await test(api, replicas)
            await asyncio.sleep(0.01)
            assert not replicas.streams, "every stream is closed"
            return result

    return asyncio.run(with_api())


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
        {"presence_penalty": 2.0, "temperature": 0.5},
        {"frequency_penalty": 2.0, "temperature": 0.5},
        {"min_tokens": 12, "ignore_eos": False, "logit_bias": {"1": 8}},
        {"logprobs": 3},
        {"logprobs": 2, "echo": True},
        {"n": 3},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_a_death_at_any_token_changes_nothing(fields: Fields) -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        request = {**PLAIN, **fields}
        undisturbed = await api.generate(request)
        shortest = undisturbed["usage"]["completion_tokens"] // len(undisturbed["choices"])
        twice = ["3 9", "0 0", "5 5", "7 12"]
        deaths = [str(token) for token in range(shortest)] + twice
        disturbed = await asyncio.gather(
            *(api.generate(request, trusted(death)) for death in deaths)
        )
        same = [expected(choice) for choice in undisturbed["choices"]]
        for death, answer in zip(deaths, disturbed, strict=True):
            assert [without_statistics(choice) for choice in answer["choices"]] == same, death
            assert counted(answer) == counted(undisturbed)
        attempts = [answer["choices"][0]["spindle"]["attempts"] for answer in disturbed]
        assert attempts == [2] * shortest + [3] * len(twice)

    run(test)


def test_a_stop_string_is_found_across_the_cut() -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
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

    run(test)


@pytest.mark.parametrize("death", ["0", "1", "7", "11 13"])
def test_a_stream_goes_on_without_a_gap_or_a_repeat(death: str) -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        undisturbed = await api.generate(PLAIN)
        chunks = [chunk async for chunk in api.stream(PLAIN, trusted(death))]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == undisturbed["choices"][0]["text"]
        last = chunks[-1]["choices"][0]
        assert last["finish_reason"] == "length"
        assert last["spindle"]["attempts"] == len(death.split()) + 1

    run(test)


@pytest.mark.parametrize("death", ["", "0", "7", "11 13"])
def test_a_trace_covers_every_token_once_over_all_replicas(death: str) -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
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

    run(test)


def test_prompt_and_output_are_resubmitted_separately_with_the_same_seed() -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        request = {name: value for name, value in PLAIN.items() if name != "seed"}
        await api.generate(request, trusted("9"))
        first, second = replicas.requests
        assert (second["prompt_ids"], second["params"]) == (first["prompt_ids"], first["params"])
        assert (first["attempt"], first["output_ids"]) == (0, [])
        assert second["attempt"] == 1
        assert 0 < len(second["output_ids"]) <= 9

    run(test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_kills_every_replica_is_given_up(streamed: bool) -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        if streamed:
            last = [chunk async for chunk in api.stream(PLAIN, trusted("5 5 5 5"))][-1]
        else:
            last = await api.generate(PLAIN, trusted("5 5 5 5"))
        assert last["error"]["status"] == 503
        assert len(replicas.requests) == 3, "limits.resubmits is 2"

    run(test)


def test_a_client_that_goes_away_is_not_resubmitted() -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        chunks = api.stream({**PLAIN, "max_tokens": 400}, trusted("300"))
        async for _ in chunks:
            break
        await chunks.aclose()
        await asyncio.sleep(0.05)
        assert len(replicas.requests) == 1
        assert not replicas.streams

    run(test)


def test_a_cancelled_task_does_not_count_as_a_death() -> None:
    async def test(api: Api, replicas: LocalReplicas) -> None:
        task = asyncio.create_task(api.generate({**PLAIN, "max_tokens": 400}))
        while not replicas.streams:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert len(replicas.requests) == 1
        assert not replicas.streams

    run(test)


Script = list[Message | Exception]


class ScriptedReplicas:
    """One script per dispatch, for messages that no healthy replica sends."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.requests: list[StreamRequest] = []

    @property
    def stream(self) -> Method:
        return Method(self._call)

    def _call(self, request: StreamRequest) -> Response:
        self.requests.append(request)
        return Response(self._play(self._scripts.pop(0)))

    async def _play(self, script: Script) -> AsyncGenerator[Message, None]:
        for line in script:
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
        "statistics": {
            "rounds": rounds,
            "drafted": 3 * rounds,
            "accepted": 2 * rounds,
            "by_lane": {"near": rounds},
            "queue_s": 0.25,
            "ttft_s": 0.5,
            "cached": 16 * rounds,
        },
    }


ACCEPTED: Message = {"kind": "accepted", "replica": "a"}
FULL: Message = {"kind": "refused", "status": 429, "message": "full", "param": None}
REQUEST: StreamRequest = {
    "name": "x",
    "attempt": 0,
    "ingress": "i",
    "prompt_ids": [1],
    "output_ids": [],
    "params": SamplingParams(seed=0),
    "slo": Slo(),
    "priority": 0,
    "tenant": "",
    "scope": SHARED,
    "speculation": {"enabled": True, "drafter": None, "max_depth": None},
    "trace": False,
    "avoid": [],
    "routed_to": None,
}


def run_scripts(*scripts: Script) -> tuple[list[int], ScriptedReplicas, Exception | None]:
    replicas = ScriptedReplicas(*scripts)

    async def read() -> tuple[list[int], Exception | None]:
        failover_stream = FailoverStream(REQUEST, replicas, (), make_config().limits)
        tokens: list[int] = []
        try:
            await failover_stream.open()
            async for one in failover_stream.commits():
                assert one["first_index"] == len(tokens)
                tokens += one["token_ids"]
        except ApiError as error:
            return tokens, error
        finally:
            failover_stream.close()
        return tokens, None

    tokens, error = asyncio.run(read())
    return tokens, replicas, error


def test_tokens_that_are_held_already_are_dropped() -> None:
    again: Script = [ACCEPTED, commit(0, 5, 6), commit(1, 6, 7, 8), commit(4, 9, finish="stop")]
    tokens, _, error = run_scripts([ACCEPTED, commit(0, 5, 6, 7), RayActorError()], again)
    assert (tokens, error) == ([5, 6, 7, 8, 9], None)


def test_a_gap_is_a_loss() -> None:
    tokens, replicas, _ = run_scripts(
        [ACCEPTED, commit(0, 5), commit(2, 7)], [ACCEPTED, commit(1, 6, 7, finish="length")]
    )
    assert tokens == [5, 6, 7]
    assert replicas.requests[1]["output_ids"] == [5]


def test_an_early_end_is_a_loss() -> None:
    tokens, _, _ = run_scripts([ACCEPTED, commit(0, 5)], [ACCEPTED, commit(1, 6, finish="stop")])
    assert tokens == [5, 6]


def test_an_accepted_request_waits_while_the_other_replicas_are_full() -> None:
    lost: Script = [ACCEPTED, commit(0, 5), RayActorError()]
    full: Script = [FULL]
    tokens, replicas, error = run_scripts(
        lost, *[full] * 5, [ACCEPTED, commit(1, 6, finish="stop")]
    )
    assert (tokens, error) == ([5, 6], None)
    assert replicas.requests[-1]["attempt"] == 1, "only losses count"


def test_a_refusal_of_the_first_attempt_is_returned_to_the_client() -> None:
    tokens, replicas, error = run_scripts([FULL])
    assert isinstance(error, ApiError)
    assert (error.status, tokens, len(replicas.requests)) == (429, [], 1)


@pytest.mark.parametrize("retry", [False, True])
def test_a_failure_is_retried_if_it_allows_that(retry: bool) -> None:
    failed: Message = messages.failed("the reader has stalled", retry)
    tokens, replicas, error = run_scripts(
        [ACCEPTED, commit(0, 5), failed], [ACCEPTED, commit(1, 6, finish="stop")]
    )
    if retry:
        assert (tokens, error) == ([5, 6], None)
    else:
        assert isinstance(error, ApiError)
        assert (error.status, len(replicas.requests)) == (503, 1)


def test_a_request_that_failed_by_a_defect_is_not_retried() -> None:
    failed = messages.failed_by_defect("cmpl")
    scripts: list[Script] = [[ACCEPTED, commit(0, 5), failed], [failed]]
    for script in scripts:
        _, replicas, error = run_scripts(script, [ACCEPTED, commit(0, 5, finish="stop")])
        assert isinstance(error, ApiError)
        assert (error.status, len(replicas.requests)) == (500, 1)
        assert "cmpl" in error.message


def test_a_death_after_the_last_commit_changes_nothing() -> None:
    tokens, replicas, error = run_scripts([ACCEPTED, commit(0, 5, finish="stop"), RayActorError()])
    assert (tokens, error, len(replicas.requests)) == ([5], None, 1)


def test_statistics_add_up_over_attempts() -> None:
    scripts: list[Script] = [
        [ACCEPTED, commit(0, 5, rounds=1), commit(1, 6, rounds=2), RayActorError()],
        [ACCEPTED, RayActorError()],
        [ACCEPTED, commit(2, 7, rounds=1), commit(3, 8, finish="stop", rounds=3)],
    ]

    async def read() -> list[int]:
        failover_stream = FailoverStream(
            REQUEST, ScriptedReplicas(*scripts), (), make_config().limits
        )
        await failover_stream.open()
        rounds = []
        async for _ in failover_stream.commits():
            rounds.append(failover_stream.statistics["rounds"])
        assert failover_stream.statistics == {
            "rounds": 5,
            "drafted": 15,
            "accepted": 10,
            "by_lane": {"near": 5},
            "queue_s": 0.5,
            "ttft_s": 0.5,
            "cached": 32,  # those of the first attempt
        }
        return rounds

    assert asyncio.run(read()) == [1, 2, 3, 5]

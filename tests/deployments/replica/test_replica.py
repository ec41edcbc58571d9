"""The replica's messages as an ingress sees them, over a Serve handle."""

import json
import os
import signal
import socket
from typing import Any

import pytest
from ray.serve.handle import DeploymentResponseGenerator

from engine.sampling.params import SamplingParams
from tests.actors.hosts.cluster import has_loaded, processes
from tests.deployments.replica.served import UNREAD_TOKENS, begin, read, replica_pid, state
from tests.deployments.serving import (
    PORT,
    SEED,
    eventually,
    expected_ids,
    heartbeat_of,
    is_idle,
    replicas,
    send_heartbeats,
    tokens,
)

pytestmark = pytest.mark.usefixtures("app")


def endless(name: str) -> DeploymentResponseGenerator:
    return begin(name, params=SamplingParams(max_tokens=1900, ignore_eos=True, seed=SEED))


def test_the_vocabulary_of_grammars_is_loaded_without_a_request() -> None:
    replica = replica_pid()
    eventually(lambda: has_loaded(replica, "llguidance"), "llguidance is loaded")


def test_a_stream_is_accepted_and_commits_the_oracles_tokens_with_statistics() -> None:
    messages = read("plain")
    assert [message["kind"] for message in messages[:1]] == ["accepted"]
    assert messages[0]["replica"] == state()["replica"]
    commits = messages[1:]
    assert {commit["kind"] for commit in commits} == {"commit"}
    assert tokens(commits) == expected_ids(1.0, SEED, 40)
    indices = [commit["first_index"] for commit in commits]
    assert indices == [
        sum(len(one["token_ids"]) for one in commits[:i]) for i in range(len(commits))
    ]
    assert [commit["finish"] for commit in commits[:-1]] == [None] * (len(commits) - 1)
    assert commits[-1]["finish"] in ("stop", "length")
    statistics = commits[-1]["statistics"]
    assert statistics.rounds == len(commits), "one message for each verdict"
    rounds = [commit["statistics"].rounds for commit in commits]
    assert rounds == sorted(rounds)
    assert rounds[0] > 0
    assert statistics.drafted >= statistics.accepted >= len(tokens(commits)) - len(commits)
    assert 0 < statistics.by_lane["tiny"] <= statistics.rounds
    # uvloop's clock has only milliseconds, and policies learn from drafts that take less.
    assert statistics.ttft_s != pytest.approx(round(statistics.ttft_s, 3), abs=1e-7)


def test_a_later_attempt_is_served_while_the_earlier_one_is_being_cancelled() -> None:
    earlier = endless("twice")
    assert next(earlier)["kind"] == "accepted"
    assert tokens(read("twice", attempt=1)) == expected_ids(1.0, SEED, 40)
    earlier.cancel()
    eventually(is_idle, "the earlier attempt is gone")


@pytest.mark.parametrize(
    ("status", "param", "changes"),
    [
        (400, "temperature", {"params": SamplingParams(temperature=-1)}),
        (
            400,
            "speculation.drafter",
            {"speculation": {"enabled": True, "drafter": "huge", "max_depth": None}},
        ),
    ],
)
def test_a_refusal_is_the_only_message_and_names_the_field(
    status: int, param: str, changes: dict[str, Any]
) -> None:
    (refusal,) = read("refused", **changes)
    assert (refusal["kind"], refusal["status"], refusal["param"]) == ("refused", status, param)
    assert param in refusal["message"]


def test_streams_of_a_silent_ingress_are_cancelled_and_can_be_retried() -> None:
    messages = list(endless("silent"))
    assert messages[-1]["kind"] == "failed"
    assert "no sign of life" in messages[-1]["message"]
    assert messages[-1]["retry"]
    eventually(is_idle, "its KV is free")


def test_a_stream_whose_client_has_left_ends_although_its_call_continues() -> None:
    stream = begin("left", params=SamplingParams(max_tokens=1500, ignore_eos=True, seed=SEED))
    replica = next(stream)["replica"]
    replicas().heartbeat.remote(heartbeat_of("left", replica, {}, "left", "unknown"))
    last = list(stream)[-1]
    assert last["kind"] == "failed"
    assert not last["retry"], "before its ingress counts as silent"
    eventually(is_idle, "nothing of it is left")


def test_heartbeats_keep_a_stream_and_a_stalled_reader_is_given_up() -> None:
    stream = begin("slow", params=SamplingParams(max_tokens=300, ignore_eos=True, seed=SEED))
    read = {"slow": 0}
    with send_heartbeats({"slow": next(stream)["replica"]}, read):
        for message in stream:
            read["slow"] += len(message.get("token_ids", ()))
    assert message["finish"] == "length"
    assert read["slow"] == 300 > UNREAD_TOKENS

    stalled = endless("stalled")
    with send_heartbeats({"stalled": next(stalled)["replica"]}, {"stalled": 0}):
        messages = list(stalled)
    assert UNREAD_TOKENS < len(tokens(messages)) < 2 * UNREAD_TOKENS
    assert messages[-1]["kind"] == "failed"
    assert "read" in messages[-1]["message"]
    assert not messages[-1]["retry"]


def test_a_client_that_reads_nothing_through_serves_proxy_is_given_up() -> None:
    """Some 8 MB: more than Linux lets sockets between the proxy and its client hold (4 MiB)."""
    asked = {"messages": [{"role": "user", "content": "Count to 9."}], "max_tokens": 1900, "n": 2}
    wordy = {"ignore_eos": True, "logprobs": True, "top_logprobs": 20, "stream": True}
    body = json.dumps({"model": "target", **asked, **wordy})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", PORT))
        client.sendall((head + body).encode())
        eventually(lambda: state()["running"] == 2, "both choices run")
        assert tokens(read("beside")) == expected_ids(1.0, SEED, 40)
        eventually(is_idle, "they have ended, with no byte read", within_s=180)
        client.settimeout(60)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    error, done = [line for line in received.splitlines() if line.startswith(b"data: ")][-2:]
    assert b"nothing of it was read for 8 s" in error
    assert done == b"data: [DONE]"


def test_an_idle_drafter_that_dies_is_replaced_before_a_request_needs_it() -> None:
    replica = state()["replica"]
    killed = processes(replica)["tiny"]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: processes(replica).get("tiny", killed) != killed, "another one is there")
    assert state()["replica"] == replica, "no reason to replace the whole replica"

"""Two replicas: which one gets a stream or a heartbeat, and what happens to the streams of a lost
one."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray._private import state  # the public API needs a dashboard
from ray.exceptions import RayError

from deployments.routing import BLOCK, IMBALANCE, PrefixMemory, block_hashes
from engine.sampling.params import SamplingParams
from tests.deployments.serving import (
    ARGS,
    PROMPT,
    SEED,
    URL,
    application,
    begin_deploy,
    deploy,
    eventually,
    read_to_end,
    replica_states,
    replicas,
    request,
    send_heartbeats,
    tokens,
)

SILENT_INGRESS_S = 5.0
SILENT_REPLICA_S = 8.0
"""Longer than a busy machine pauses: a replica that only waits for it must not seem lost."""
LIMITS = {
    "max_batch": 16,
    "unread_tokens": 64,
    "stalled_s": 120,
    "silent_ingress_s": SILENT_INGRESS_S,
    "silent_replica_s": SILENT_REPLICA_S,
}
TWO = {**ARGS, "limits": LIMITS, "scaling": {"min_replicas": 2, "max_replicas": 2}}
ONE = {**TWO, "scaling": {}}
ENDLESS = SamplingParams(max_tokens=1500, ignore_eos=True, seed=SEED)
LONG = replace(ENDLESS, max_tokens=400)


@pytest.fixture(scope="module")
def _two_replicas() -> Iterator[None]:
    with application(TWO):
        yield


def open_stream(name: str, **changes: Any) -> tuple[Any, str]:
    """The stream, and the replica that has it."""
    stream = replicas().options(stream=True).stream.remote(request(name, **changes))
    return stream, next(stream)["replica"]


def open_and_read(name: str, **changes: Any) -> str:
    """The replica that it had."""
    stream, home = open_stream(name, **changes)
    assert read_to_end(stream, name, home)[-1]["finish"] is not None
    return home


def test_prompts_share_the_blocks_up_to_their_first_difference() -> None:
    prompt = list(range(4 * BLOCK))
    other = [*prompt[: 2 * BLOCK + 3], 999, *prompt[2 * BLOCK + 4 :]]
    memory = PrefixMemory()
    memory.add(block_hashes(prompt))
    assert memory.shared(block_hashes(prompt + [1] * (BLOCK - 1))) == 4
    assert memory.shared(block_hashes(other)) == 2
    assert memory.shared(block_hashes(prompt[BLOCK:])) == 0, "the same tokens elsewhere"
    assert memory.shared(block_hashes(prompt, ["tenant", ""])) == 0, "another scope's prompt"


@pytest.mark.usefixtures("_two_replicas")
def test_prompts_that_begin_alike_go_to_one_replica_and_others_are_spread() -> None:
    shared = [7] * 3 * BLOCK
    homes = set()
    for number in range(10):
        stream, home = open_stream(f"alike {number}", prompt_ids=[*shared, number])
        homes.add(home)
        list(stream)
    assert len(homes) == 1
    spread: Counter[str] = Counter()
    for number in range(20):
        stream, home = open_stream(f"other {number}", prompt_ids=[100 + number] * BLOCK)
        spread[home] += 1
        list(stream)
    assert len(spread) == 2


@pytest.mark.usefixtures("_two_replicas")
def test_a_shared_prefix_does_not_overload_one_replica() -> None:
    shared = [9] * 3 * BLOCK
    held = [
        open_stream(f"many {number}", prompt_ids=[*shared, number], params=ENDLESS)
        for number in range(IMBALANCE + 6)
    ]
    homes = Counter(home for _, home in held)
    for stream, _ in held:
        stream.cancel()
    assert len(homes) == 2
    assert max(homes.values()) - min(homes.values()) <= IMBALANCE + 1


@pytest.mark.usefixtures("_two_replicas")
def test_heartbeats_reach_the_replicas_that_they_name() -> None:
    """Each stream would be cancelled as unread or as a silent ingress's, had its heartbeats gone to
    the other replica."""
    streams: dict[str, Any] = {}
    homes: dict[str, str] = {}
    while len(set(homes.values())) < 2 and len(streams) < 16:
        name = f"read {len(streams)}"
        streams[name], homes[name] = open_stream(
            name, prompt_ids=[200 + len(streams)] * BLOCK, params=LONG
        )
    assert len(set(homes.values())) == 2
    read = dict.fromkeys(streams, 0)

    def follow(name: str) -> None:
        for message in streams[name]:
            read[name] += len(message.get("token_ids", ()))

    with send_heartbeats(homes, read), ThreadPoolExecutor(len(streams)) as readers:
        list(readers.map(follow, streams, timeout=60))
    assert read == dict.fromkeys(streams, LONG.max_tokens)


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def router() -> Any:
    """The router actor as it is now."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["name"].endswith("router"):
            return ray.get_actor(actor["name"], actor["namespace"])
    return None


def has_reports(actor: Any) -> bool:
    """Whether the router has heard of a replica."""
    try:
        report = {"replica": "none", "statistics": {}}
        return bool(ray.get(actor.exchange.remote(report), timeout=5))
    except (AttributeError, RayError):
        return False


@pytest.mark.usefixtures("_two_replicas")
def test_replicas_serve_without_a_router_and_report_to_the_next() -> None:
    eventually(lambda: has_reports(router()), "the router has reports")
    ray.kill(router())
    assert open_and_read("without a router", prompt_ids=[500] * BLOCK) in set(replica_pids())
    eventually(lambda: has_reports(router()), "a new router has reports")


def replica_pids() -> dict[str, int]:
    prefix = "SERVE_REPLICA::spindle#Replica#"
    actors = state.actors(actor_state_name="ALIVE").values()
    return {
        one["Name"].removeprefix(prefix): int(one["Pid"])
        for one in actors
        if one["Name"].startswith(prefix)
    }


def metrics(name: str, label: str) -> dict[str, float]:
    """One metric of `/metrics`, by the values of a label."""
    text = httpx.get(f"{URL}/metrics", timeout=30).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {one.labels.get(label, ""): one.value for one in families[f"spindle_{name}"].samples}


@pytest.mark.usefixtures("_two_replicas")
def test_a_stream_of_a_replica_that_hangs_goes_on_elsewhere() -> None:
    """Nothing is closed: without heartbeats it would wait for ever."""
    asked = {
        "model": "target",
        "prompt": PROMPT,
        "seed": 3,
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 600,
    }
    handle = serve.get_app_handle("spindle").options(stream=True)
    undisturbed = list(handle.stream.remote(asked))
    stream = handle.stream.remote(asked)
    chunks = [next(stream)]
    one, pids = replicas().state.remote().result(timeout_s=10), replica_pids()
    (working,) = {one["replica"]} if one["running"] else pids.keys() - {one["replica"]}
    hanging = pids[working]
    os.kill(hanging, signal.SIGSTOP)
    try:
        chunks += list(stream)
    finally:
        os.kill(hanging, signal.SIGCONT)
    assert text_of(chunks) == text_of(undisturbed)
    statistics = chunks[-1]["choices"][0]["spindle"]
    assert statistics["attempts"] == 2
    assert statistics["replica"] in pids.keys() - {working}


@pytest.mark.usefixtures("_two_replicas")
def test_a_replica_that_hangs_and_holds_no_stream_is_avoided() -> None:
    """It never accepts what it was sent, which would wait for `recovery_s`."""
    handle = serve.get_app_handle("spindle")
    asked = {"model": "target", "prompt": [600] * 3 * BLOCK, "seed": 3, "max_tokens": 8}

    def ask() -> tuple[str, dict[str, Any]]:
        (choice,) = handle.generate.remote(asked).result(timeout_s=30)["choices"]
        return choice["text"], choice["spindle"]

    text, statistics = ask()
    preferred = statistics["replica"]  # from now on, for this prompt
    hanging = replica_pids()[preferred]
    os.kill(hanging, signal.SIGSTOP)
    try:
        elsewhere, moved = ask()
        _, avoided = ask()
    finally:
        os.kill(hanging, signal.SIGCONT)
    assert elsewhere == text
    assert moved["attempts"] == 2
    assert moved["replica"] != preferred
    assert avoided["attempts"] == 1
    assert avoided["replica"] != preferred


@pytest.mark.usefixtures("_two_replicas")
def test_a_replica_that_dies_is_counted_and_replaced() -> None:
    lost = metrics("replicas_lost", "")[""]
    asked = {"model": "target", "prompt": [600] * BLOCK, "max_tokens": 1900, "ignore_eos": True}
    stream = serve.get_app_handle("spindle").options(stream=True).stream.remote(asked)
    next(stream)
    one, pids = replicas().state.remote().result(timeout_s=10), replica_pids()
    (dead,) = {one["replica"]} if one["running"] else pids.keys() - {one["replica"]}
    os.kill(pids[dead], signal.SIGKILL)
    assert list(stream)[-1]["choices"][0]["spindle"]["attempts"] == 2
    eventually(lambda: metrics("replicas_lost", "")[""] == lost + 1, "the death is counted", 60)
    eventually(lambda: len(replica_pids().keys() - {dead}) == 2, "a new one is there", 90)


@pytest.mark.usefixtures("_two_replicas")
def test_streams_of_replicas_that_are_replaced_go_on_to_their_end() -> None:
    """A replica that drains is no longer listed, and still receives heartbeats."""
    streams: dict[str, Any] = {}
    homes: dict[str, str] = {}
    for number in range(2):
        name = f"drained {number}"
        streams[name], homes[name] = open_stream(
            name, prompt_ids=[300 + number] * BLOCK, params=LONG
        )
    read = dict.fromkeys(streams, 0)
    received: dict[str, list[dict[str, Any]]] = {name: [] for name in streams}
    replaced = threading.Event()

    def follow(name: str) -> None:
        for message in streams[name]:
            received[name].append(message)
            if len(received[name]) == 3:
                replaced.wait(90)  # unread, it pauses, and nearly all is still to come
            read[name] += len(message.get("token_ids", ()))

    with send_heartbeats(homes, read), ThreadPoolExecutor(len(streams)) as readers:
        following = readers.map(follow, streams, timeout=150)
        begin_deploy(ONE)
        try:
            eventually(lambda: replica_states().get("STOPPING", 0) > 0, "one goes", within_s=60)
        finally:
            replaced.set()
        list(following)
    for name, messages in received.items():
        assert messages[-1].get("finish") is not None, (name, messages[-1])
        assert len(tokens(messages)) == LONG.max_tokens
    deploy(ONE)
    _, home = open_stream("after", prompt_ids=[300] * BLOCK)
    assert home not in homes.values()

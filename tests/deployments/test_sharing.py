"""Replicas and applications that start later draft from past answers, of their own scope alone.

Worth two starts of an application: the attack of served/test_tenants.py, over processes and the
disk.
"""

import secrets
from array import array
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import ray

from tests.deployments.served.application import APPLICATIONS, KEYS
from tests.deployments.serving import application, eventually, replica_states, replicas
from tests.deployments.tenant_attack import Seen, attack, secret_answer, share_read

VICTIM, ATTACKER = KEYS["alpha"], KEYS["beta"]


def test_later_replicas_and_applications_draft_from_a_scopes_words_in_that_scope_alone(
    tmp_path: Path,
) -> None:
    """And answer as before. Attacks leave no words of their own, by `store`."""
    args = {**APPLICATIONS["native"], "past_outputs_folder": str(tmp_path / "kept")}
    seed = secrets.randbits(32)

    def look(key: str, **fields: str) -> Seen:
        return attack(key, answer, store=False, **fields)

    def check() -> None:
        eventually(lambda: share_read(look(VICTIM), answer) > 0.9, "they have come")
        assert look(ATTACKER) == before
        assert look(VICTIM, cache_salt="guessed") == before
        assert secret_answer(VICTIM, seed, store=False) == answer

    with application(args):
        # Known in advance from a request that leaves nothing.
        answer = secret_answer(VICTIM, seed, store=False)
        before = look(ATTACKER)
        assert secret_answer(VICTIM, seed, cache_salt="a salt") == answer
        assert secret_answer(VICTIM, seed) == answer
        eventually(kept(tmp_path, answer, times=2), "both are on disk")
        replace_replica()
        check()
    with application(args):
        check()


def kept(folder: Path, answer: list[int], times: int) -> Callable[[], bool]:
    # The drafter does not get the last tokens, after which nothing is drafted.
    encoded = b64encode(array("i", answer[:30]).tobytes())

    def is_kept() -> bool:
        files = list(folder.glob("kept/past_outputs_*"))
        data = files[0].read_bytes() if files else b""
        assert not any(key.encode() in data for key in (*KEYS.values(), "a salt"))
        return data.count(encoded) == times

    return is_kept


def replace_replica() -> None:
    def serving() -> str:
        state = replicas().state.remote().result(timeout_s=60)
        return str(state["replica"])

    lost = serving()
    ray.kill(ray.get_actor(f"SERVE_REPLICA::spindle#Replica#{lost}", namespace="serve"))
    eventually(lambda: replica_states() == {"RUNNING": 1}, "another replica runs", 90)
    eventually(lambda: serving() != lost, "it is called")

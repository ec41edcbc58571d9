"""Nothing of one tenant reaches another, on either backend.

The same attack reads a tenant's own words, so it would find those of others.
"""

import secrets
from typing import Any

import pytest
import requests

from tests.deployments.served.application import KEYS
from tests.deployments.serving import KEY_FROM_ENVIRONMENT, URL
from tests.deployments.tenant_attack import attack, secret_answer, share_read

pytestmark = pytest.mark.usefixtures("app")
VICTIM, ATTACKER, EARLIER = KEYS["alpha"], KEYS["beta"], KEY_FROM_ENVIRONMENT


@pytest.fixture
def salt() -> dict[str, Any]:
    """A scope within each tenant's that no other test uses."""
    return {"cache_salt": secrets.token_hex(8)}


def test_an_attack_finds_the_same_whatever_another_tenant_has_asked(salt: dict[str, Any]) -> None:
    seed = secrets.randbits(32)
    # Known in advance from a scope that is never attacked, as attacks leave traces of their own.
    answer = secret_answer(VICTIM, seed, cache_salt="elsewhere")
    before = attack(EARLIER, answer, **salt)
    assert secret_answer(VICTIM, seed, **salt) == answer
    after = attack(ATTACKER, answer, **salt)
    assert after == before
    own = attack(VICTIM, answer, **salt)
    assert share_read(own, answer) > 0.9, "the attack works within a scope"
    assert own.counts != before.counts
    assert max(own.cached) > max(before.cached)


def test_a_salt_is_a_scope_of_its_own(salt: dict[str, Any]) -> None:
    answer = secret_answer(VICTIM, secrets.randbits(32), **salt)
    fresh = {"cache_salt": salt["cache_salt"] + " other"}
    seen = attack(VICTIM, answer, **fresh)
    assert share_read(seen, answer) < 0.2
    assert seen.cached[-2] == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_every_api_takes_a_salt(path: str) -> None:
    text = f"Say {secrets.token_hex(40)} again."
    prompt: dict[str, Any] = (
        {"input": text} if path.endswith("responses") else {"messages": chat(text)}
    )

    def cached(salt: str) -> int:
        fields = {"model": "target", **prompt, "cache_salt": salt}
        headers = {"Authorization": f"Bearer {VICTIM}"}
        usage = requests.post(f"{URL}{path}", json=fields, headers=headers, timeout=60).json()
        details = usage["usage"].get("prompt_tokens_details") or usage["usage"].get(
            "input_tokens_details"
        )
        count: int = details["cached_tokens"]
        return count

    assert [cached("one"), cached("two")] == [0, 0]
    assert cached("one") > 0
    assert cached("two") > 0


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_statistics_are_for_operators(salt: dict[str, Any]) -> None:
    secret_answer(VICTIM, 1, **salt)

    def get(path: str) -> requests.Response:
        headers = {"Authorization": f"Bearer {ATTACKER}"}
        return requests.get(f"{URL}{path}", headers=headers, timeout=10)

    refused = get("/metrics")
    assert refused.status_code == 403
    assert "operators" in refused.json()["error"]["message"]
    shown = get("/spindle/live").json()
    assert shown["drafters"]
    assert shown["replicas"] == []

"""With `sharing: all` tenants read each other's words, as the config says.

Worth the start of an application for each backend: the attack that finds nothing in
served/test_tenants.py finds everything here, so it can.
"""

import secrets

import pytest

from tests.deployments.served.application import APPLICATIONS, KEYS
from tests.deployments.serving import VLLM_LOADS_S, application
from tests.deployments.tenant_attack import (
    attack,
    over_grpc,
    over_http,
    secret_answer,
    share_read,
)


@pytest.mark.parametrize("backend", APPLICATIONS)
def test_a_tenant_reads_anothers_words(backend: str) -> None:
    args = {**APPLICATIONS[backend], "sharing": "all"}
    with application(args, within_s=VLLM_LOADS_S):
        for call in (over_http, over_grpc):
            answer = secret_answer(call, KEYS["alpha"], secrets.randbits(32))
            seen = attack(call, KEYS["beta"], answer)
            assert share_read(seen, answer) > 0.9
            assert max(seen.cached) > 0

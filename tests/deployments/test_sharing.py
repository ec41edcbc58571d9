"""With `sharing: all` tenants read each other's words, as the config says.

Worth the start of an application: the attack that finds nothing in served/test_tenants.py finds
everything here, so it can.
"""

import secrets

from tests.deployments.served.application import APPLICATIONS, KEYS
from tests.deployments.serving import application
from tests.deployments.tenant_attack import attack, secret_answer, share_read


def test_a_tenant_reads_anothers_words() -> None:
    with application({**APPLICATIONS["native"], "sharing": "all"}):
        answer = secret_answer(KEYS["alpha"], secrets.randbits(32))
        seen = attack(KEYS["beta"], answer)
        assert share_read(seen, answer) > 0.9
        assert max(seen.cached) > 0

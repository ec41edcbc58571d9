"""A new `user_config` switches policies. The last module here, which ends the replica."""

import pytest

from engine.sampling.params import SamplingParams
from tests.deployments.replica.served import REPLICA_ARGS, begin, read, state
from tests.deployments.serving import SEED, deploy, expected_ids, send_heartbeats, tokens

pytestmark = pytest.mark.usefixtures("app")


def test_user_config_switches_policies_while_a_request_runs() -> None:
    stream = begin("switched", params=SamplingParams(max_tokens=40, temperature=1.0, seed=SEED))
    replica = next(stream)["replica"]
    with send_heartbeats({"switched": replica}, {"switched": 0}):
        deploy(REPLICA_ARGS, {"speculation": {"name": "off"}})
        assert replica == state()["replica"], "the same process"
        assert tokens(list(stream)) == expected_ids(1.0, SEED, 40)
    assert read("plainly")[-1]["statistics"].drafted == 0

    # Ordered by lengths that the target itself is asked for.
    deploy(REPLICA_ARGS, {"schedule": {"name": "laps_sd"}, "speculation": {"name": "fixed"}})
    assert tokens(read("laps")) == expected_ids(1.0, SEED, 40)
    deploy(REPLICA_ARGS, {"schedule": {"name": "self_ranked"}, "pipeline": {"parts": 2}})
    assert tokens(read("ranked")) == expected_ids(1.0, SEED, 40)


def test_a_bad_user_config_fails_the_deployment_and_names_the_field() -> None:
    """The last test here, as Serve has stopped the replica then."""
    with pytest.raises(AssertionError, match="schedule: there is no 'best'"):
        deploy(REPLICA_ARGS, {"schedule": {"name": "best"}})

"""Who a client is, and how many places one may hold."""

import pytest

from deployments.ingress.clients import Client, Keys, Shares, trusted
from deployments.ingress.errors import ApiError
from tests.deployments.local import make_config

CONFIG = make_config(
    limits={"max_batch": 2, "max_waiting": 2, "client_share": 0.5}, scaling={"max_replicas": 3}
)
CLIENT = Client("a", "a", may_prioritize=False)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("unix:", ""),
        ("another client, or a name of 64 KiB", ""),
        ("", ""),
    ],
)
def test_without_keys_a_client_is_an_address_or_an_ipv6_network(address: str, client: str) -> None:
    found = Keys({}).client("", address)
    assert (found.tenant, found.share_of) == (client, client)


@pytest.mark.parametrize(
    ("key", "priority_for", "may"),
    [("", [], False), ("", ["*"], True), ("first", ["first"], True), ("second", ["first"], False)],
)
def test_priority_is_for_those_that_the_config_names(
    key: str, priority_for: list[str], may: bool
) -> None:
    """Who asks nevertheless: tests/deployments/ingress/test_grpc.py."""
    keys = {name: f"key of {name}" for name in ("first", "second")} if key else {}
    client = Keys(keys, priority_for=priority_for).client(f"Bearer key of {key}", "192.0.2.7")
    assert client.may_prioritize is may


def test_the_share_follows_the_number_of_replicas() -> None:
    replicas = 1
    shares = Shares(CONFIG, lambda: replicas)
    assert shares.largest_request == 6, "at most 3 replicas with 4 places each"
    shares.take(CLIENT, 2)
    with pytest.raises(ApiError) as refused:
        shares.take(CLIENT, 1)
    assert refused.value.status == 429
    replicas = 2
    shares.take(CLIENT, 2)
    with pytest.raises(ApiError):
        shares.take(CLIENT, 1)
    shares.give_back(CLIENT, 2)
    shares.take(CLIENT, 2)
    with pytest.raises(ApiError):
        shares.take(CLIENT, 1)


def test_callers_by_handle_have_the_share_of_the_tenant_that_they_name() -> None:
    shares = Shares(CONFIG, lambda: 1)
    for _ in range(8):
        shares.take(trusted(""), 1)
    shares.take(trusted("a"), 2)
    with pytest.raises(ApiError):
        shares.take(trusted("a"), 1)

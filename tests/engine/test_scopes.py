"""Scopes differ wherever a tenant or a salt does, and tenants share a bounded memory fairly."""

from itertools import combinations

from engine.scopes import IDLE_S, INTERNAL, SHARED, Holdings, Scope


def test_no_two_scopes_have_one_digest() -> None:
    scopes = [
        SHARED,
        INTERNAL,
        Scope("a"),
        Scope("", "a"),
        Scope("a", "b"),
        Scope("ab"),
        Scope("", "ab"),
        Scope("b", "a"),
        Scope("é", "\0"),
    ]
    for one, other in combinations(scopes, 2):
        assert one.digest != other.digest, (one, other)


def test_the_tenant_that_holds_most_gives_room() -> None:
    holdings = Holdings(clock=lambda: 0.0)
    holdings.add("small", 3)
    holdings.add("large", 5)
    assert holdings.gives_room(["small", "large"]) == "large"
    holdings.add("small", 2)  # as much, and used later
    assert holdings.gives_room(["small", "large"]) == "large"
    holdings.add("large", -1)
    assert holdings.gives_room(["small", "large"]) == "small"
    assert holdings.gives_room(["large"]) == "large"


def test_an_idle_tenant_gives_room_first() -> None:
    now = 0.0
    holdings = Holdings(clock=lambda: now)
    holdings.add("idle longest", 1)
    now = 1.0
    holdings.add("idle", 2)
    now = IDLE_S
    holdings.add("busy", 9)
    assert holdings.gives_room(["idle longest", "idle", "busy"]) == "busy"
    now += 2.0
    assert holdings.gives_room(["busy", "idle", "idle longest"]) == "idle longest"
    holdings.use("idle longest")
    assert holdings.gives_room(["busy", "idle", "idle longest"]) == "idle"


def test_a_tenant_that_holds_nothing_is_forgotten() -> None:
    holdings = Holdings()
    for number in range(1000):
        holdings.add(str(number), 2)
        holdings.add(str(number), -2)
        holdings.use(str(number))
    assert not holdings.held
    assert not holdings._used_s

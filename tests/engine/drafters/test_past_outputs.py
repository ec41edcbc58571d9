"""Past outputs stay within their scope and their bound, also when a tenant floods them."""

from engine.drafters.lookup import SuffixDrafter
from engine.drafters.past_outputs import SCOPE_TOKENS, PastOutputs
from engine.drafters.text_index import NONE, TOKENS
from engine.scopes import IDLE_S, SHARED, Scope
from tests.engine.drafters.orders import Stream

OUTPUT = [5, 6, 7, 8, 9]


def kept(past: PastOutputs, scope: Scope) -> set[int]:
    index = past.index(scope)
    return set(index.store[TOKENS, : index.end].tolist()) - {NONE}


def memory(past: PastOutputs) -> int:
    scopes = [scope for texts in past._texts.values() for scope in texts]
    return sum(past.index(scope).store.nbytes for scope in scopes)


def test_a_request_drafts_from_past_outputs_of_its_own_scope_alone() -> None:
    drafter, scopes = SuffixDrafter(), [SHARED, Scope("a"), Scope("b"), Scope("a", "salt")]
    for number, scope in enumerate(scopes):
        answered = Stream(f"first {number}", [1, 2], scope=scope)
        assert len(answered.draft(drafter, depth=1)) == 0
        answered.committed.extend([3, 4, 50 + number])
        assert len(answered.draft(drafter, depth=0)) == 0
        drafter.forget([answered.name])
    for number, scope in enumerate(scopes):
        tree = Stream(f"second {number}", [3, 4], scope=scope).draft(drafter, depth=4, width=4)
        assert tree.tokens.tolist() == [50 + number]


def test_an_answer_that_may_not_be_kept_is_not_drafted_from() -> None:
    drafter = SuffixDrafter()
    for remember, drafts in ((False, []), (True, []), (True, [5])):
        stream = Stream(f"{remember} {drafts}", [3, 4], remember=remember)
        assert stream.draft(drafter, depth=1).tokens.tolist() == drafts
        stream.committed.extend([3, 4, 5])
        stream.draft(drafter, depth=0)
        drafter.forget([stream.name])


def test_a_tenant_learns_confidences_from_its_own_drafts_alone() -> None:
    drafter = SuffixDrafter()

    def confidence(name: str, tenant: str) -> float:
        """The same draft each time, which the target then refuses."""
        stream = Stream(name, [1, 2, 3, 1, 2], scope=Scope(tenant))
        tree = stream.draft(drafter, depth=1)
        stream.committed.extend([9])
        stream.draft(drafter, depth=0)
        return float(tree.confidence[0])

    first = confidence("a", "one")
    assert confidence("b", "one") < first
    assert confidence("c", "two") == first


def test_evicted_outputs_take_no_memory() -> None:
    """Also very short ones, and ones that drafts came from."""
    past = PastOutputs(max_tokens=100)
    for last in range(2_000):
        past.add(SHARED, [*OUTPUT, last])
        past.add(SHARED, [last])
        past.touch(SHARED, past.index(SHARED).end - 2)
    index = past.index(SHARED)
    assert index.store.shape[1] <= 1024
    assert sum(token != NONE for token in index.store[TOKENS, : index.end]) <= 100


def test_a_tenant_that_floods_evicts_its_own_outputs() -> None:
    past = PastOutputs(max_tokens=1000)
    past.add(Scope("quiet"), range(300))
    for number in range(1000):  # under ever new salts, and under one
        past.add(Scope("loud", str(number)), [2000, 2001])
        past.add(Scope("loud"), range(1000 + number, 1100 + number))
    assert kept(past, Scope("quiet")) == set(range(300))
    assert 2098 in kept(past, Scope("loud"))


def test_an_idle_tenant_gives_its_room_back() -> None:
    now = 0.0
    past = PastOutputs(max_tokens=1000, clock=lambda: now)
    past.add(Scope("quiet"), range(300))
    now = IDLE_S + 1
    for number in range(10):
        past.add(Scope("loud"), range(100 * number, 100 * number + 100))
    assert not kept(past, Scope("quiet"))
    assert len(past) == 1


def test_the_number_of_scopes_is_bounded() -> None:
    past = PastOutputs(max_tokens=10_000)
    for number in range(5_000):
        past.add(Scope("", str(number)), [1])
    assert 1 < len(past) <= 1 + 10_000 // SCOPE_TOKENS
    assert kept(past, Scope("", "4999")) == {1}


def test_many_scopes_at_once_take_bounded_memory() -> None:
    """Each in turn as large as may be: 20 bytes a token, a third of them in use, in powers of 2."""
    past = PastOutputs(max_tokens=50_000)
    for number in range(2_000):
        past.add(Scope(f"tenant {number % 256}"), range(1 + 17 * number % 5_000))
        assert memory(past) <= 20 * 2 * (3 * 50_000 + 256 * SCOPE_TOKENS)
    assert len(past) > 50

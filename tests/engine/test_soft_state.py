"""What a host remembers of requests: right by hash, bounded, and asked for again when lost."""

from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Missing, Prefix
from engine.soft_state import HeldRequest, SoftState
from tests.engine.drafters.orders import Stream


class Host:
    def __init__(self, max_requests: int = 8) -> None:
        self.dropped: list[str] = []
        self.state = SoftState(max_requests, lambda request, held: self.dropped.append(request))

    def follow(self, prefix: Prefix) -> HeldRequest | Missing:
        (answer,) = self.state.accept([prefix])
        return answer

    def follow_held(self, prefix: Prefix) -> HeldRequest:
        answer = self.follow(prefix)
        assert isinstance(answer, HeldRequest)
        return answer


@given(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2)), st.data())
def test_unchanged_is_the_common_prefix_of_old_and_new(
    old: list[int], new: list[int], data: st.DataObject
) -> None:
    host, stream = Host(), Stream("a", old)
    host.follow(stream.order(0).prefix)
    stream.seen = data.draw(st.integers(0, len(old)))
    stream.committed.truncate(stream.seen)
    stream.committed.extend(new)
    held = host.follow_held(stream.prefix())
    assert held.committed.ids == stream.committed.ids
    pairs = zip([*old, None], [*stream.committed.ids, None], strict=False)
    same = [i for i, (a, b) in enumerate(pairs) if a != b]
    assert held.unchanged == (same[0] if same else min(len(old), len(stream.committed)))


def test_an_unknown_request_is_asked_for_whole() -> None:
    host, stream = Host(), Stream("a", [5, 6])
    stream.seen = 1
    assert host.follow(stream.prefix()) == Missing("a", 0, 1, have=0)
    stream.seen = 0
    assert host.follow(stream.prefix()._replace(start=None)) == Missing("a", 0, 2, have=0)
    assert "a" not in host.state


def test_a_host_that_is_behind_says_how_far_it_is() -> None:
    host, stream = Host(), Stream("a", [5, 6])
    host.follow(stream.order(0).prefix)
    stream.committed.extend([7, 8])
    stream.seen = 4
    assert host.follow(stream.prefix()) == Missing("a", 0, 2, have=2)
    stream.seen = 2
    assert host.follow_held(stream.prefix()).committed.ids == [5, 6, 7, 8]


def test_the_least_recently_used_request_leaves() -> None:
    host = Host(max_requests=2)
    streams = {name: Stream(name, [1, 2]) for name in "abc"}
    for name in "abac":
        host.follow(streams[name].order(0).prefix)
    assert host.dropped == ["b"]
    assert list(host.state) == ["a", "c"]


def test_no_order_of_a_batch_evicts_another() -> None:
    host = Host(max_requests=1)
    batch = [Stream(name, [1]).prefix() for name in "abc"]
    assert all(isinstance(answer, HeldRequest) for answer in host.state.accept(batch))
    assert host.dropped == []
    host.follow(Stream("d", [1]).prefix())
    assert host.dropped == ["a", "b", "c"]

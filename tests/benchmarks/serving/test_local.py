"""The zoo served in one process: what its ways are compared on."""

from actors.coordinator.settings import Lane
from actors.hosts.inline import DirectDrafter
from actors.hosts.loading import make_lookup
from benchmarks.serving.local import drafter, forget_answers
from policies.request import LaneView
from tests.engine.drafters.orders import Stream

ANSWER = [11, 12, 13, 14, 15, 16]


def test_no_way_finds_what_another_one_was_answered() -> None:
    spec = drafter("suffix")
    host = DirectDrafter(make_lookup(spec))
    lanes = [Lane(LaneView("suffix", "suffix", 64), host, free=True)]
    first = Stream("first", [1, 2])
    first.draft(host.drafter, depth=0)
    first.committed.extend(ANSWER)
    first.draft(host.drafter, depth=0)
    host.drafter.forget(["first"])
    found = Stream("second", [1, 11, 12]).draft(host.drafter, depth=3)
    assert found.tokens.tolist() == [13, 14, 15]
    forget_answers(lanes, [spec])
    assert len(Stream("third", [1, 11, 12]).draft(host.drafter, depth=3)) == 0

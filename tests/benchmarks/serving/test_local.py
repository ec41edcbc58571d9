"""What the modes of `benchmarks.serving.local` are compared on."""

from actors.coordinator.settings import Lane
from actors.hosts.direct import DirectDrafter, make_lookup
from benchmarks.serving.local import drafter_config, reset_lookups
from policies.request import LaneView
from tests.engine.drafters.orders import Stream

OUTPUT = [11, 12, 13, 14, 15, 16]


def test_lookups_do_not_find_the_outputs_of_another_mode() -> None:
    lookup = drafter_config("suffix")
    host = DirectDrafter(make_lookup(lookup))
    lanes = [Lane(LaneView("suffix", "suffix", 64), host, always_drafts=True)]
    first = Stream("first", [1, 2])
    first.draft(host.drafter, depth=0)
    first.committed.extend(OUTPUT)
    first.draft(host.drafter, depth=0)
    host.drafter.forget(["first"])
    draft = Stream("second", [1, 11, 12]).draft(host.drafter, depth=3)
    assert draft.tokens.tolist() == [13, 14, 15]
    reset_lookups(lanes, [lookup])
    assert len(Stream("third", [1, 11, 12]).draft(host.drafter, depth=3)) == 0

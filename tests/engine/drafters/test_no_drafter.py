from tests.engine.drafters.no_drafter import NoDrafter
from tests.engine.drafters.orders import Stream


def test_every_order_is_answered_with_an_empty_tree() -> None:
    drafter = NoDrafter()
    stream = Stream("a", [1, 2, 1, 2])
    assert len(stream.draft(drafter, depth=4, width=2)) == 0
    drafter.forget(["a"])
    assert len(stream.draft(drafter, depth=4)) == 0

"""Which lanes are planned together, and which requests the barrier makes wait."""

from actors.coordinator.microbatches import verified_together, waiting_for
from actors.coordinator.request_state import RequestState
from actors.coordinator.stream import Statistics, Stream
from engine.request import TargetLimits, admit
from engine.sampling.params import SamplingParams
from policies.request import RequestView

LIMITS = TargetLimits(vocab_size=100, max_context=100, stop_token_ids=())


def request(name: str, cohort: int) -> RequestState:
    served = admit(name, [1], SamplingParams(max_tokens=9), LIMITS)
    stream = Stream(name, Statistics(), on_close=lambda: None, on_acknowledge=lambda: None)
    view = RequestView(name, 0.0, 1, 9)
    return RequestState(served, view, stream, cohort=cohort, prefilled=True)


def test_requests_without_a_lane_wait_for_their_own_micro_batch_only() -> None:
    drafted, first, second = request("drafted", 0), request("first", 0), request("second", 1)

    groups = list(verified_together({"lane": [drafted], None: [first, second]}))

    assert groups == [{"lane": [drafted], None: [first]}, {None: [second]}]
    running = [drafted, first, second, other := request("other", 1)]
    assert [waiting_for(group, running) for group in groups] == [[], [other]]

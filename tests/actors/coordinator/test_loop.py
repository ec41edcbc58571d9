"""The coordinator over a real engine, in virtual time: streams, limits, losses and readers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import pytest

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import (
    CaughtUp,
    Event,
    LaneDown,
    LaneUp,
    Left,
    Preempted,
    Switched,
    Verified,
    VerifierDown,
    VerifierUp,
)
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.coordinator.stream import Cancelled, Overloaded, Stream
from actors.hosts.direct import DirectDrafter
from actors.hosts.protocol import HostLost
from benchmarks.generation import generate
from engine.drafters.lookup import NgramDrafter
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import InvalidRequest, SpindleError
from engine.model import PackedModel
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from policies.cost import ForwardCost
from policies.microbatch import MicroBatchParams
from policies.protocols import Schedule
from policies.request import LaneView, Slo
from policies.scheduling.fairness import FairSchedule
from policies.scheduling.fcfs import fcfs
from policies.speculation.fixed import Fixed
from tests import prompt_logprobs
from tests.actors.coordinator.fake_hosts import Lost, PacedDrafter, PacedVerifier, never
from tests.actors.coordinator.policies import Touring
from tests.checkpoints import CONTEXT, VOCAB, blurred, eager_llama, llama
from tests.engine.kv import integrity
from tests.identity import joined

Kind = TypeVar("Kind", bound=Event)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
WARM = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=11, ignore_eos=True)
CATCH_UP_S = 1e-5
PROMPTS = [[5, 6, 7], [9] * 30, [3], [11, 12] * 20, [40, 41, 42, 43], [8] * 3]
PARAMS = [GREEDY, WARM, replace(WARM, seed=12), GREEDY, replace(WARM, temperature=0.7), GREEDY]


def make_verifier() -> NativeVerifier:
    return NativeVerifier(PackedModel(llama(), kv_tokens=2048))


def make_drafter(name: str, noise: float) -> ModelDrafter:
    runner = PackedRunner(PackedModel(blurred(llama(), noise), kv_tokens=2048))
    return ModelDrafter(name, runner, target_vocab_size=VOCAB)


@dataclass
class Service:
    """A coordinator with two model lanes and a lookup, and everything that tests inspect."""

    schedule: Schedule = field(default_factory=fcfs)
    limits: Limits = field(default_factory=lambda: Limits(max_batch=4, kv_tokens=1024))
    stay: int = 6
    own_processors: bool = True
    pipeline: MicroBatchParams = field(default_factory=MicroBatchParams)
    kv_tokens: int = 2048
    verifier_lost: Lost = never
    drafter_lost: Lost = never
    drafter_slow: Mapping[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.selection = Touring(self.stay)
        self.targets: list[PackedModel] = []
        self.verifier = PacedVerifier(self.make_verifier, lost=self.verifier_lost)
        self.near = PacedDrafter(
            lambda: make_drafter("near", 0.02), lost=self.drafter_lost, slow=self.drafter_slow
        )
        self.far = PacedDrafter(lambda: make_drafter("far", 0.2), seconds=0.004)
        lanes = [
            Lane(
                LaneView("near", "near", capacity=8, catch_up_s=CATCH_UP_S),
                self.near,
                own_processors=self.own_processors,
            ),
            Lane(
                LaneView("far", "far", capacity=8, catch_up_s=CATCH_UP_S),
                self.far,
                own_processors=self.own_processors,
            ),
            Lane(
                LaneView("ngram", "ngram", 64),
                DirectDrafter(NgramDrafter("ngram")),
                always_drafts=True,
            ),
        ]
        draft = {"near": ForwardCost(0, 0, 0.0003), "far": ForwardCost(0, 0, 0.001)}
        self.estimates = Estimates(
            Costs(ForwardCost(0, 1e-5, 0.01), draft, 64, {}, 64), [lane.view for lane in lanes]
        )
        self.coordinator = Coordinator(
            self.verifier,
            lanes,
            Policies(self.schedule, self.selection, Fixed()),
            self.estimates,
            self.limits,
            self.pipeline,
            self.events.append,
        )

    def make_verifier(self) -> NativeVerifier:
        model = PackedModel(llama(), kv_tokens=self.kv_tokens)
        self.targets.append(model)
        return NativeVerifier(model)

    def seen(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    async def end(self) -> None:
        """Checks that no KV is held for requests that have left, and closes the coordinator."""
        await asyncio.sleep(1)
        for model in self.targets:
            integrity.check(model.kv)
        assert self.targets[-1].kv.used_blocks == 0
        await self.coordinator.close()


async def read(stream: Stream, pause_s: float = 0.0) -> list[int]:
    tokens: list[int] = []
    async for commit in stream:
        assert commit.first_index == len(tokens)
        tokens += commit.token_ids
        if pause_s:
            await asyncio.sleep(pause_s)
    return tokens


def plainly(prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[int]]:
    return joined(generate(make_verifier(), prompts, params), len(prompts))[0]


async def serve_all(service: Service, params: Sequence[SamplingParams] = PARAMS) -> list[list[int]]:
    """The streams of all PROMPTS, which arrive one after the other while the first ones run."""

    async def client(number: int) -> list[int]:
        await asyncio.sleep(0.015 * number)
        return await read(service.coordinator.submit(str(number), PROMPTS[number], params[number]))

    streams = await asyncio.gather(*map(client, range(len(PROMPTS))))
    await service.end()
    return list(streams)


@pytest.mark.parametrize("parts", [None, 1, 3])
async def test_streams_equal_plain_decoding_while_requests_switch_lanes(parts: int | None) -> None:
    service = Service(pipeline=MicroBatchParams(parts=parts))
    assert await serve_all(service) == plainly(PROMPTS, PARAMS)
    accepted = sum(o.accepted for e in service.seen(Verified) for o in e.outcomes)
    assert accepted > 20, "too few draft tokens were accepted for a test"
    assert service.seen(Switched)


async def test_kv_memory_smaller_than_its_limit_delays_requests_but_loses_nothing() -> None:
    long = replace(GREEDY, max_tokens=180)
    prompts = [[number] * 40 for number in range(2, 6)]
    service = Service(limits=Limits(max_batch=4, kv_tokens=4 * CONTEXT), kv_tokens=CONTEXT)
    streams = [
        read(service.coordinator.submit(str(number), prompt, long))
        for number, prompt in enumerate(prompts)
    ]
    assert await asyncio.gather(*streams) == plainly(prompts, [long] * 4)
    assert service.seen(Preempted)
    await service.end()


async def test_forwards_stay_within_forward_tokens_and_prompts_are_chunked() -> None:
    limits = Limits(max_batch=4, kv_tokens=1024, forward_tokens=24)
    service = Service(limits=limits)
    assert await serve_all(service) == plainly(PROMPTS, PARAMS)
    sizes = [event.tokens for event in service.seen(Verified)]
    assert max(sizes) <= 24 + 4, "only roots may exceed it"


async def test_a_tenants_long_requests_beyond_its_part_of_the_kv_leave_others_their_slots() -> None:
    limits = Limits(max_batch=8, kv_tokens=400)
    service = Service(limits=limits, schedule=FairSchedule(fcfs()))
    submit = service.coordinator.submit
    streams = [submit(f"long{n}", [7 + n] * 200, GREEDY, tenant="b") for n in range(3)]
    streams += [submit(f"short{n}", [5, 6, n], GREEDY, tenant="a") for n in range(3)]
    await asyncio.gather(*map(read, streams))
    waited_s = [stream.statistics.queue_s for stream in streams]
    assert waited_s[0] == 0.0
    assert waited_s[3:] == [0.0] * 3
    await service.end()


async def test_a_short_prompt_does_not_wait_until_another_tenants_long_ones_are_read() -> None:
    service = Service(limits=Limits(max_batch=4, kv_tokens=1024, forward_tokens=24))
    submit, once = service.coordinator.submit, replace(GREEDY, max_tokens=1)
    streams = [submit(f"long{n}", [7 + n] * 180, once, tenant="b") for n in range(3)]
    streams.append(submit("short", [5] * 20, once, tenant="a"))
    await asyncio.gather(*map(read, streams))
    left = [event.view.name for event in service.seen(Left)]
    assert left == ["short", "long0", "long1", "long2"]
    await service.end()


async def test_one_request_more_than_the_limits_is_refused_until_another_has_left() -> None:
    service = Service(limits=Limits(max_batch=1, max_waiting=1, kv_tokens=1024))
    streams = [service.coordinator.submit(str(i), [5], GREEDY) for i in range(2)]
    with pytest.raises(Overloaded, match="max_waiting"):
        service.coordinator.submit("third", [5], GREEDY)
    assert await read(streams[0]) == await read(streams[1])
    await asyncio.sleep(0.1)
    assert await read(service.coordinator.submit("third", [5], GREEDY))
    await service.end()


async def test_a_stalled_reader_delays_no_other_and_its_request_is_cancelled() -> None:
    limits = Limits(max_batch=1, kv_tokens=1024, unread_tokens=30, stalled_s=5.0)
    service = Service(limits=limits)
    stalled = service.coordinator.submit("first", [7], replace(GREEDY, max_tokens=200))
    other = service.coordinator.submit("second", PROMPTS[0], GREEDY)
    assert await read(other) == plainly(PROMPTS[:1], [GREEDY])[0]
    assert other.statistics.queue_s is not None
    assert other.statistics.queue_s < 1.0, "it must get the slot at once"
    assert 30 < stalled.unread_tokens < 30 + 10
    await asyncio.sleep(6)
    with pytest.raises(Cancelled):
        await read(stalled)
    await service.end()


async def test_a_relayed_request_pauses_until_its_tokens_are_acknowledged() -> None:
    limits = Limits(max_batch=1, kv_tokens=1024, unread_tokens=10, stalled_s=5.0)
    service = Service(limits=limits)
    long = replace(GREEDY, max_tokens=60)
    stream = service.coordinator.submit("relayed", [7], long)
    tokens: list[int] = []

    async def relay() -> None:
        async for commit in stream.relay():
            tokens.extend(commit.token_ids)

    relaying = asyncio.create_task(relay())
    await asyncio.sleep(2)
    assert 10 < len(tokens) < 10 + 10, "it must pause for its reader"
    while not relaying.done():
        stream.acknowledge(len(tokens))
        await asyncio.sleep(1)
    assert tokens == plainly([[7]], [long])[0]
    stream.acknowledge(len(tokens))  # the request has left: no error
    await service.end()


async def test_the_earlier_output_of_a_resubmitted_request_does_not_count_as_unread() -> None:
    limits = Limits(max_batch=1, kv_tokens=1024, unread_tokens=10, stalled_s=5.0)
    service = Service(limits=limits)
    long = replace(GREEDY, max_tokens=60)
    whole = plainly([[7]], [long])[0]
    stream = service.coordinator.submit("again", [7], long, output=whole[:40])
    await asyncio.sleep(0.1)
    assert 0 < stream.unread_tokens <= 20
    assert [token async for commit in stream for token in commit.token_ids] == whole[40:]
    await service.end()


async def test_statistics_give_queueing_time_and_rounds_by_lane() -> None:
    service = Service(limits=Limits(max_batch=1, kv_tokens=1024))
    streams = [service.coordinator.submit(name, [5, 6], GREEDY) for name in ("one", "two")]
    await asyncio.gather(*map(read, streams))
    first, second = (stream.statistics for stream in streams)
    assert first.queue_s == 0.0
    assert first.ttft_s is not None
    assert 0.01 <= first.ttft_s < 0.1
    assert second.queue_s is not None
    assert second.ttft_s is not None
    assert second.ttft_s > second.queue_s > 0.1, "it waits for the first request"
    looked_up = first.by_lane.pop("ngram")  # beside the selected lane
    assert first.rounds >= looked_up > 0
    assert first.rounds == second.rounds >= sum(first.by_lane.values()) > 0
    assert first.accepted == GREEDY.max_tokens - first.rounds
    await service.end()


async def test_prompt_logprobs_come_once_and_complete_although_the_verifier_is_lost() -> None:
    prompt = [token % VOCAB for token in range(3, 90)]
    with_logprobs = replace(GREEDY, prompt_logprobs=2)
    limits = Limits(max_batch=4, kv_tokens=1024, forward_tokens=20)
    service = Service(limits=limits, verifier_lost=lambda call: call in (2, 28, 43))
    submit = service.coordinator.submit
    before = await read(submit("before", prompt, GREEDY))  # leaves it in the prefix cache
    resubmitted = submit("again", prompt, with_logprobs, output=before[:4])
    streams = [submit(str(number), prompt, with_logprobs) for number in range(3)]

    async def commits(stream: Stream) -> list[Commit]:
        return [commit async for commit in stream]

    for first, *later in await asyncio.gather(*map(commits, streams)):
        prompt_logprobs.check(eager_llama(), prompt, 2, first.prompt_logprobs)
        assert all(commit.prompt_logprobs is None for commit in later)
    for commit in await commits(resubmitted):
        assert commit.prompt_logprobs is None, "the first attempt has returned them"
    assert len(service.seen(VerifierDown)) == 3
    await service.end()


@pytest.mark.parametrize("lost", [False, True])
async def test_rounds_go_on_without_a_late_drafter_and_use_it_again_when_it_is_there(
    lost: bool,
) -> None:
    service = Service(drafter_slow={3: 0.6}, drafter_lost=lambda call: lost and call == 3)
    long = [replace(params, max_tokens=60) for params in PARAMS]
    assert await serve_all(service, long) == plainly(PROMPTS, long)
    rounds = [event.at_s for event in service.seen(Verified)]
    longest_s = max(later - earlier for earlier, later in pairwise(rounds))
    assert 0.5 < longest_s < 0.55, "limits.slow_drafter_s and a round"
    assert len(service.seen(LaneDown)) == len(service.seen(LaneUp)) == lost
    assert service.near.calls > 4, "the lane is not used again"
    assert lost or not service.near.missing, "what it has read while nothing waited is known"


async def test_a_request_that_kills_drafters_is_left_out_and_others_are_drafted_for() -> None:
    service = Service(limits=Limits(max_batch=6, kv_tokens=2048))
    service.near.killer = service.far.killer = "1"
    long = [replace(params, max_tokens=60) for params in PARAMS]
    assert await serve_all(service, long) == plainly(PROMPTS, long)
    assert len(service.seen(LaneDown)) == 2
    later = service.seen(LaneUp)[-1].at_s
    drafted = {
        o.request for e in service.seen(Verified) if e.at_s > later for o in e.outcomes if o.lane
    }
    assert drafted
    assert "1" not in drafted


async def test_a_verifier_that_does_not_recover_ends_every_stream_with_an_error_that_names_it() -> (
    None
):
    service = Service(verifier_lost=lambda call: call == 4)

    async def gone() -> None:
        raise HostLost("the verifier did not come back within 60 s")

    service.verifier.recover = gone  # type: ignore[method-assign]
    streams = [service.coordinator.submit(name, [5], GREEDY) for name in ("one", "two")]
    for stream in streams:
        with pytest.raises(SpindleError, match="the verifier did not come back"):
            await read(stream)
    assert not service.coordinator.alive


async def test_lost_idle_hosts_are_found_and_recovered() -> None:
    service = Service()

    async def lost(_requests: object) -> None:
        raise HostLost("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.near, "forget", lost)
        patch.setattr(service.verifier, "forget", lost)
        await service.coordinator.check_hosts()
    await asyncio.sleep(1)
    assert [event.lane for event in service.seen(LaneUp)] == ["near"]
    assert len(service.seen(VerifierUp)) == 1
    await service.coordinator.check_hosts()
    assert len(service.seen(LaneDown)) == len(service.seen(VerifierDown)) == 1
    assert await serve_all(service) == plainly(PROMPTS, PARAMS)


def lanes_of(service: Service, request: str) -> set[str | None]:
    rounds = [o for event in service.seen(Verified) for o in event.outcomes]
    return {outcome.lane for outcome in rounds if outcome.request == request and outcome.drafted}


async def test_only_the_drafter_that_a_request_names_drafts_for_it() -> None:
    service = Service()
    named = {"a": "far", "b": "far", "c": "ngram", "d": None}
    streams = [
        service.coordinator.submit(name, [7, 8, 9] * 5, GREEDY, drafter=drafter)
        for name, drafter in named.items()
    ]
    expected = plainly([[7, 8, 9] * 5], [GREEDY])[0]
    assert await asyncio.gather(*map(read, streams)) == [expected] * 4
    assert set(streams[0].statistics.by_lane) == lanes_of(service, "a") == {"far"}
    assert lanes_of(service, "b") == {"far"}
    assert lanes_of(service, "c") <= {None}, (
        "only the lookup drafts, which is never the selected lane"
    )
    assert len(lanes_of(service, "d") - {None}) == 2
    with pytest.raises(InvalidRequest, match="there are near, far, ngram"):
        service.coordinator.submit("e", [7], GREEDY, drafter="other")
    await service.end()


async def test_a_request_whose_drafter_is_down_or_full_decodes_plainly() -> None:
    service = Service(
        drafter_lost=lambda call: call == 1, limits=Limits(max_batch=16, kv_tokens=2048)
    )

    async def never_back() -> None:
        await asyncio.Event().wait()

    service.near.recover = never_back  # type: ignore[method-assign]
    streams = [
        service.coordinator.submit(f"{drafter}{number}", [7, 8, 9], GREEDY, drafter=drafter)
        for drafter in ("near", "far")
        for number in range(10)
    ]
    expected = plainly([[7, 8, 9]], [GREEDY])[0]
    assert await asyncio.gather(*map(read, streams)) == [expected] * 20
    assert service.near.calls == 1
    assert service.far.most_requests <= 8
    assert all(set(stream.statistics.by_lane) <= {"far"} for stream in streams)
    await service.end()


async def test_a_defect_ends_every_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()

    async def broken(*_: object) -> list[object]:
        raise RuntimeError("out of order")

    service.verifier.verify = broken  # type: ignore[assignment,method-assign]
    stream = service.coordinator.submit("one", [5], GREEDY)
    with pytest.raises(SpindleError, match="out of order"):
        await read(stream)
    assert not service.coordinator.alive
    with pytest.raises(SpindleError, match="out of order"):
        service.coordinator.submit("two", [5], GREEDY)
    assert "Traceback" in caplog.text
    assert "in broken" in caplog.text


async def test_new_micro_batch_parameters_apply_to_the_next_micro_batches() -> None:
    service = Service(pipeline=MicroBatchParams(parts=1), stay=1000)
    long = replace(GREEDY, max_tokens=100)
    reading = [
        asyncio.create_task(read(service.coordinator.submit(str(number), [number] * 3, long)))
        for number in range(4)
    ]
    await asyncio.sleep(0.2)
    assert len(service.seen(Verified)[-1].outcomes) == 4
    service.coordinator.use(
        Policies(service.schedule, service.selection, Fixed()), MicroBatchParams(parts=2)
    )
    await asyncio.sleep(0.1)
    assert [len(round.outcomes) for round in service.seen(Verified)[-4:]] == [2] * 4
    await asyncio.gather(*reading)
    await service.end()


async def test_idle_lanes_catch_up_on_requests_that_will_switch_to_them() -> None:
    async def late_tokens(service: Service) -> int:
        """The tokens on which drafters had to catch up when requests switched to them."""
        params = replace(GREEDY, max_tokens=90)
        streams = [service.coordinator.submit(str(i), [5 + i] * 9, params) for i in range(3)]
        await asyncio.gather(*map(read, streams))
        await service.end()
        return sum(event.caught_up for event in service.seen(Switched))

    reading, alone = Service(stay=24), Service(stay=24)
    alone.selection.likely_next = lambda request: None  # type: ignore[method-assign]
    assert await late_tokens(reading) < await late_tokens(alone) / 2
    assert reading.seen(CaughtUp)
    prepared = [event for event in reading.seen(Switched) if event.read_ahead]
    assert len(prepared) > len(reading.seen(Switched)) / 2
    for event in prepared:
        assert event.saved_s == pytest.approx(event.read_ahead * CATCH_UP_S)
    assert sum(e.read_ahead for e in prepared) <= sum(e.tokens for e in reading.seen(CaughtUp))
    assert not any(event.read_ahead for event in alone.seen(Switched))
    assert not alone.seen(CaughtUp)


async def test_lanes_on_the_verifiers_processors_catch_up_for_a_small_share_of_the_time() -> None:
    async def share_of_reading(own_processors: bool, idle_s: float = 0.0) -> float:
        service = Service(stay=24, own_processors=own_processors)
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(idle_s)
        started = clock()
        params = replace(GREEDY, max_tokens=110)
        streams = [service.coordinator.submit(str(i), [5 + i] * 9, params) for i in range(4)]
        await asyncio.gather(*map(read, streams))
        seconds = clock() - started
        await service.end()
        return sum(event.seconds for event in service.seen(CaughtUp)) / seconds

    # One order may exceed the reading time saved up.
    assert 0 < await share_of_reading(own_processors=False) < 0.05
    assert await share_of_reading(own_processors=True) > 0.05
    # No reading time is saved up while no request runs.
    assert await share_of_reading(own_processors=False, idle_s=60.0) < 0.05


async def test_tokens_of_another_replica_count_as_on_time() -> None:
    """Otherwise a resumed request seems to be far ahead of its TPOT."""
    service = Service()
    whole = plainly([[7]], [GREEDY])[0]
    slo = Slo(ttft_s=1.0, tpot_s=0.05)
    stream = service.coordinator.submit("again", [7], GREEDY, slo=slo, output=whole[:9])
    assert [token async for commit in stream for token in commit.token_ids] == whole[9:]
    await asyncio.sleep(0.1)
    (left,) = service.seen(Left)
    assert left.statistics.ttft_s is not None
    came_s = left.view.arrival_s + left.statistics.ttft_s
    assert left.view.first_token_s == pytest.approx(came_s - 9 * 0.05)
    await service.end()

"""Features through the coordinator, in virtual time: what lanes are sent, lose and do without."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import CaughtUp, Event, FeaturesLost, LaneDown, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from cluster.plan.simulator.clock import run
from engine.errors import UnsupportedModel
from engine.model import PackedModel
from engine.protocol import VerifyOrder
from engine.verifiers.native import NativeVerifier
from policies.cost import ForwardCost
from policies.request import LaneView
from policies.scheduling.fcfs import fcfs
from policies.speculation.fixed import Fixed
from tests.actors.coordinator.fake_hosts import PacedDrafter, PacedVerifier, never
from tests.actors.coordinator.policies import Touring
from tests.actors.coordinator.test_loop import PARAMS, PROMPTS, make_drafter, plainly, read
from tests.checkpoints import eager_llama, llama
from tests.engine.drafters.feature_reader import FeatureReader, check_features

LAYERS = {"near": (1,), "head": (0, 1)}


class RecordingVerifier(NativeVerifier):
    orders: list[VerifyOrder]

    def verify(self, orders: Sequence[VerifyOrder]) -> Any:
        self.orders.extend(orders)
        return super().verify(orders)


async def broken() -> None:
    raise UnsupportedModel("llama", "its weights are gone")


class Served:
    """All prompts, served by two lanes that take turns; `heads` read features."""

    def __init__(
        self,
        heads: Sequence[str] = ("head",),
        stay: int = 6,
        kv_tokens: int = 2048,
        lanes: Sequence[str] = tuple(LAYERS),
        **options: Any,
    ) -> None:
        self.events: list[Event] = []
        self.orders: list[VerifyOrder] = []
        self.readers: list[FeatureReader] = []
        self._heads, self._stay, self._kv_tokens, self._names = heads, stay, kv_tokens, lanes
        self._options = options
        run(self._serve())

    @property
    def last_orders(self) -> dict[str, VerifyOrder]:
        return {order.prefix.request: order for order in self.orders}

    def seen(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def _serve(self) -> None:
        options = self._options
        verifier = PacedVerifier(self._verifier, lost=options.get("verifier_lost", never))
        lanes = [
            Lane(
                LaneView(name, name, capacity=8),
                PacedDrafter(self._drafter(name), lost=options.get(f"{name}_lost", never)),
                feature_layers=LAYERS[name] if name in self._heads else (),
                own_processors=options.get("own_processors", True),
            )
            for name in self._names
        ]
        if not options.get("head_recovers", True):
            lanes[-1].host.recover = broken  # type: ignore[method-assign]
        costs = dict.fromkeys(LAYERS, ForwardCost(0, 0, 0.0003))
        coordinator = Coordinator(
            verifier,
            lanes,
            Policies(options.get("schedule") or fcfs(), Touring(self._stay), Fixed()),
            Estimates(
                Costs(ForwardCost(0, 1e-5, 0.01), costs, 64, {}, 64), [lane.view for lane in lanes]
            ),
            options.get("limits", Limits(max_batch=4, kv_tokens=1024)),
            observe=self.events.append,
            lessons=options.get("lessons"),
        )
        teachers: Mapping[int, str] = options.get("teachers", {})

        async def client(number: int) -> list[int]:
            await asyncio.sleep(0.015 * number)
            who: dict[str, Any] = {
                "tenant": teachers.get(number, ""),
                "may_teach": number in teachers,
            }
            submitted = coordinator.submit(str(number), prompts[number], params[number], **who)
            return await read(submitted)

        learning = asyncio.create_task(options.get("learning", asyncio.sleep)(3600))
        prompts, params = options.get("prompts", PROMPTS), options.get("params", PARAMS)
        self.streams = list(await asyncio.gather(*map(client, range(len(prompts)))))
        self.took_s = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
        assert not learning.done()
        learning.cancel()
        await coordinator.close()

    def _verifier(self) -> NativeVerifier:
        made = RecordingVerifier(PackedModel(llama(), kv_tokens=self._kv_tokens))
        made.orders = self.orders
        return made

    def _drafter(self, name: str) -> Callable[[], Any]:
        def make() -> Any:
            drafter = make_drafter(name, 0.02)
            if name not in self._heads:
                return drafter
            self.readers.append(FeatureReader(drafter, LAYERS[name]))
            return self.readers[-1]

        return make


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return plainly(PROMPTS, PARAMS)


@pytest.mark.parametrize("heads", [("head",), ("near", "head")])
def test_heads_get_the_features_of_their_layers_while_requests_switch_lanes(
    heads: Sequence[str], expected: list[list[int]]
) -> None:
    served = Served(heads)
    assert served.streams == expected
    assert not served.seen(FeaturesLost)
    assert served.seen(CaughtUp)
    for reader in served.readers:
        check_features(reader, eager_llama())
    accepted = sum(o.accepted for event in served.seen(Verified) for o in event.outcomes)
    assert accepted > 40


def test_without_heads_nothing_is_asked_of_the_verifier(expected: list[list[int]]) -> None:
    served = Served(heads=())
    assert served.streams == expected
    assert all(order.features is None for order in served.orders)


def test_a_restarted_head_leaves_requests_out_whose_features_are_gone(
    expected: list[list[int]],
) -> None:
    served = Served(head_lost=lambda call: call == 9)
    assert served.streams == expected
    assert served.seen(LaneDown)
    assert served.seen(FeaturesLost)
    assert len(served.seen(FeaturesLost)) <= len(PROMPTS)
    assert len(served.readers) == 2
    check_features(served.readers[0], eager_llama())
    lost = {event.request for event in served.seen(FeaturesLost)}
    asked = {name: order.features is not None for name, order in served.last_orders.items()}
    assert asked == {name: name not in lost for name in asked}


def test_a_head_that_cannot_be_loaded_again_is_kept_no_features(expected: list[list[int]]) -> None:
    served = Served(head_lost=lambda call: call == 3, head_recovers=False)
    assert served.streams == expected
    assert served.seen(LaneDown)
    assert any(order.features is not None for order in served.orders)
    assert not any(order.features is not None for order in served.last_orders.values())


def test_a_lost_verifier_computes_features_again(expected: list[list[int]]) -> None:
    """Also for a head that was restarted before, which can then draft again."""
    served = Served(
        lanes=["head"], head_lost=lambda call: call == 5, verifier_lost=lambda call: call == 12
    )
    assert served.streams == expected
    for reader in served.readers:
        check_features(reader, eager_llama())
    left_out = {event.request for event in served.seen(FeaturesLost)}
    assert left_out & {request for request, _, _ in served.readers[1].read}


@pytest.mark.parametrize("own_processors", [True, False])
@pytest.mark.parametrize("prompts", [[[8, 9, 7] * 40], [[8, 9, 7] * 40, [9] * 100, [3] * 80]])
def test_long_prompts_are_read_while_they_are_prefilled(
    prompts: list[list[int]], own_processors: bool
) -> None:
    """They have more features than are kept; no order brings a lane more than are."""
    limits = Limits(max_batch=4, kv_tokens=1024, feature_tokens=32, forward_tokens=12)
    served = Served(("near", "head"), prompts=prompts, limits=limits, own_processors=own_processors)
    assert served.streams == plainly(prompts, PARAMS[: len(prompts)])
    assert not served.seen(FeaturesLost)
    for reader in served.readers:
        check_features(reader, eager_llama())
        seen: dict[str, int] = {}
        for request, _tokens, rows in reader.read:
            assert len(rows) - seen.get(request, 0) <= 32
            seen[request] = len(rows)

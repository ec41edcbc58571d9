"""Requests in whose forwards the verifier is lost, in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from actors.coordinator.events import VerifierDown
from actors.coordinator.settings import Limits
from actors.coordinator.stream import RequestFailed
from tests.actors.coordinator.test_loop import PARAMS, PROMPTS, Service, plainly, read

LONG = [replace(params, max_tokens=60) for params in PARAMS]
LIMITS = Limits(max_batch=6, kv_tokens=2048, forward_tokens=16)
"""Prompts of 30 and 40 tokens are verified in several forwards."""


@pytest.mark.parametrize("killer", ["0", "3"])
@pytest.mark.parametrize("speculate", [True, False])
async def test_a_request_that_loses_verifiers_fails_with_the_second_and_the_others_continue(
    killer: str, speculate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(limits=LIMITS)
    service.verifier.killer = killer
    streams = [
        service.coordinator.submit(str(number), prompt, params, speculate=speculate)
        for number, (prompt, params) in enumerate(zip(PROMPTS, LONG, strict=True))
    ]
    outputs = await asyncio.gather(*map(read, streams), return_exceptions=True)
    expected: list[object] = [*plainly(PROMPTS, LONG)]
    assert isinstance(outputs[int(killer)], RequestFailed)
    expected[int(killer)] = outputs[int(killer)]
    assert outputs == expected
    assert len(service.seen(VerifierDown)) == 2
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"request {killer} fails: two verifiers were lost over it"]
    await service.end()


async def test_several_such_requests_cost_one_verifier_each_and_the_first_loss_together() -> None:
    service = Service(limits=LIMITS.model_copy(update={"forward_tokens": 512}))
    verify = service.verifier.verify

    async def killed_by_either(orders):  # type: ignore[no-untyped-def]
        names = {order.prefix.request for order in orders}
        service.verifier.killer = "1" if "1" in names else "4"
        return await verify(orders)

    service.verifier.verify = killed_by_either  # type: ignore[method-assign]
    streams = [
        service.coordinator.submit(str(number), prompt, params)
        for number, (prompt, params) in enumerate(zip(PROMPTS, LONG, strict=True))
    ]
    outputs = await asyncio.gather(*map(read, streams), return_exceptions=True)
    failed = [number for number, one in enumerate(outputs) if isinstance(one, RequestFailed)]
    assert failed == [1, 4]
    assert len(service.seen(VerifierDown)) == 3
    await service.end()


async def test_after_an_accident_each_request_is_alone_until_its_first_token_and_others_go_on() -> (
    None
):
    lost = 12
    service = Service(limits=LIMITS, verifier_lost=lambda call: call == lost)
    # Without drafts, requests are always ready when a forward ends.
    streams = [
        service.coordinator.submit(str(number), prompt, params, speculate=False)
        for number, (prompt, params) in enumerate(zip(PROMPTS, LONG, strict=True))
    ]
    assert await asyncio.gather(*map(read, streams)) == plainly(PROMPTS, LONG)
    batches, brought = service.verifier.batches, service.verifier.brought
    aboard = set(batches[lost - 1])
    assert len(aboard) == len(PROMPTS)
    cleared: set[str] = set()
    was_alone = False
    call = lost
    while cleared != aboard:
        alone = not cleared.issuperset(batches[call])
        if alone:
            assert len(batches[call]) == 1
            assert not (was_alone and cleared), "others wait for a second suspect"
        else:
            assert set(batches[call]) == cleared
        was_alone = alone
        cleared |= brought[call]
        call += 1
    assert set(batches[call]) == aboard
    await service.end()

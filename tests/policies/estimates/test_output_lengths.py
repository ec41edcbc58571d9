"""Output lengths learned from finished requests."""

import pytest

from policies.estimates.output_lengths import MOST_GROUPS, REMEMBERED, LearnedLengths
from policies.request import RequestView, Slo

NO_SLO = Slo()


def request(
    prompt: int = 100, generated: int = 0, tenant: str = "", most: int = 1000, slo: Slo = NO_SLO
) -> RequestView:
    return RequestView(
        "r", 0.0, prompt, max_tokens=most, slo=slo, tenant=tenant, generated=generated
    )


def learned(*finished: RequestView) -> LearnedLengths:
    lengths = LearnedLengths()
    for one in finished:
        lengths.finished(one)
    return lengths


def test_nothing_is_predicted_before_enough_requests_have_finished() -> None:
    seven = [request(generated=50)] * 7
    assert learned(*seven).predict(request()) is None
    assert learned(*seven, request(generated=50)).predict(request()) == pytest.approx(50)


@pytest.mark.parametrize(
    "other",
    [{"prompt": 800}, {"tenant": "b"}, {"most": 2000}, {"slo": Slo(tpot_s=0.1)}],
    ids=["prompt", "tenant", "max_tokens", "slo"],
)
def test_requests_are_compared_with_those_alike(other: dict[str, object]) -> None:
    short = [request(generated=20)] * 20
    long = [request(generated=400, **other)] * 20  # type: ignore[arg-type]
    lengths = learned(*short, *long)
    ours, theirs = lengths.predict(request()), lengths.predict(request(**other))  # type: ignore[arg-type]
    assert ours is not None
    assert theirs is not None
    assert ours < 60 < 300 < theirs


def test_a_kind_never_seen_is_predicted_as_the_mean_of_all() -> None:
    lengths = learned(*[request(generated=20)] * 10, *[request(generated=60, prompt=900)] * 10)
    assert lengths.predict(request(tenant="new", prompt=5)) == pytest.approx(40)


def test_tokens_so_far_leave_only_those_that_became_longer() -> None:
    lengths = learned(*[request(generated=20)] * 30, *[request(generated=300)] * 5)
    early = lengths.predict(request())
    late = lengths.predict(request(generated=21))
    assert early is not None
    assert early < 100
    assert late == pytest.approx(300)
    assert lengths.predict(request(generated=300)) is None
    assert lengths.predict(request(generated=21, most=250)) == 250


def test_memory_is_bounded() -> None:
    lengths = learned()
    for number in range(1000):
        lengths.finished(request(tenant=str(number), generated=number + 1))
    held = lengths._lengths
    assert len(held) <= MOST_GROUPS
    assert max(map(len, held.values())) == REMEMBERED

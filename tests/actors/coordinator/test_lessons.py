"""What a replica hands to a trainer: whole requests that may teach, with the target's features."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.coordinator.lessons import Lessons
from actors.coordinator.settings import Limits
from actors.learning.replica_side import Answer, ExchangeLessons, Learning, Report
from engine.learning.lessons import Lesson, LessonMemory
from tests.actors.coordinator.test_features import Served
from tests.actors.coordinator.test_loop import PARAMS, PROMPTS, plainly
from tests.checkpoints import eager_llama
from tests.engine.drafters.feature_reader import stock_features

LAYERS = (0, 1)
MAY_TEACH = {0: "named", 3: "other"}
"""By request, its tenant."""
LIMITS = Limits(max_batch=4, kv_tokens=1024)


def serve(
    lessons: Lessons,
    limits: Limits = LIMITS,
    exchange: ExchangeLessons | None = None,
    **options: Any,
) -> tuple[list[list[int]], float]:
    """All prompts, by a lane without features and one that learns, and the virtual time that it
    took. `exchange`: reaches the trainer."""
    if exchange is not None:
        side = Learning("replica", exchange, lessons, {}, lambda *_: None)
        options["learning"] = lambda _seconds: side.run()
    served = Served(lessons=lessons, limits=limits, teachers=MAY_TEACH, **options)
    return served.streams, served.took_s


def test_requests_that_may_teach_do_so_with_all_their_features() -> None:
    lessons = Lessons(["head"], 4096, LAYERS)
    lessons.wanted = 10_000
    assert serve(lessons)[0] == plainly(PROMPTS, PARAMS)
    taught, served = lessons.take()
    assert {lesson.tenant for lesson in taught} == {*MAY_TEACH.values()}
    for lesson in taught:
        number = next(n for n, tenant in MAY_TEACH.items() if tenant == lesson.tenant)
        assert [*lesson.tokens[: lesson.prompt_len]] == PROMPTS[number]
        expected = stock_features(eager_llama(), lesson.tokens, LAYERS)[: len(lesson.features)]
        np.testing.assert_allclose(lesson.features, expected, atol=1e-4)
        assert lesson.answered == len(lesson.tokens) - lesson.prompt_len
    assert {(one.version, one.tenant) for one in served} == {(0, "named"), (0, "other")}
    assert all(0 <= one.first_tokens.tokens <= one.first_tokens.forwards for one in served)
    assert lessons.take() == ([], [])


def test_a_request_with_an_adapter_teaches_nothing() -> None:
    """A head would learn from hidden states that are not the base model's."""
    adapted = [replace(params, adapter="sql") for params in PARAMS]
    lessons = Lessons(["head"], 4096, LAYERS)
    lessons.wanted = 10_000
    serve(lessons, params=[*PARAMS[:3], *adapted[3:]])
    taught, _ = lessons.take()
    assert [lesson.tenant for lesson in taught] == ["named"]
    assert not lessons.passed_over


@pytest.mark.parametrize(
    ("wanted", "limits"),
    [
        pytest.param(0, LIMITS, id="no room at the trainer"),
        pytest.param(
            10_000, Limits(max_batch=4, kv_tokens=1024, feature_tokens=16), id="features dropped"
        ),
    ],
)
def test_what_is_not_taught_is_counted(wanted: int, limits: Limits) -> None:
    lessons = Lessons(["head"], limits.feature_tokens, LAYERS)
    lessons.wanted = wanted
    assert serve(lessons, limits)[0] == plainly(PROMPTS, PARAMS)
    assert not lessons.take()[0]
    assert lessons.passed_over == len(MAY_TEACH)


async def stopped(_report: Report) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


async def killed(_report: Report) -> Answer:
    raise ConnectionError("the actor died")


async def mad(_report: Report) -> Answer:
    return {"wanted": 9, "lanes": {"none": 3}, "versions": {3: b"not a version"}}  # type: ignore[typeddict-item]


@pytest.mark.parametrize("exchange", [stopped, killed, mad])
def test_streams_take_as_long_as_without_a_trainer_that_does_not_answer(
    exchange: ExchangeLessons,
) -> None:
    lessons = Lessons(["head"], 4096, LAYERS)
    streams, took_s = serve(lessons, exchange=exchange)
    assert (streams, took_s) == serve(Lessons((), 0))
    assert streams == plainly(PROMPTS, PARAMS)
    assert lessons.versions == {"head": 0}


def lesson(tenant: str, tokens: int, mark: int = 0) -> Lesson:
    return Lesson([mark] * tokens, 4, np.zeros((tokens - 1, 2), np.float32), tenant)


def marks(lessons: Sequence[Lesson]) -> list[tuple[str, int]]:
    return [(one.tenant, one.tokens[0]) for one in lessons]


def test_a_tenant_that_floods_the_memory_displaces_its_own_lessons() -> None:
    memory = LessonMemory(most_tokens=1000)
    memory.add(lesson("quiet", 300))
    dropped = sum(memory.add(lesson("flooder", 100, mark)) for mark in range(50))
    assert dropped == 43
    taken = memory.take(150)
    assert marks(taken) == [("quiet", 0)]
    assert marks(memory.take(150)) == [("flooder", 43), ("flooder", 44)]

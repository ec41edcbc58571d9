"""The trainer with a replica's side, without Ray: versions reach lanes by and by, and stay over
restarts, whatever becomes of the disk."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.coordinator.lessons import Lessons, ServedOutcome
from actors.learning import trainer as trainer_module
from actors.learning.replica_side import Answer, Learning, Numbers, Report
from actors.learning.trainer import Trainer
from cluster.config import DrafterConfig, TargetConfig
from cluster.config.learning import LearnConfig
from cluster.plan.simulator import clock
from engine.errors import InvalidVersion
from engine.learning.lessons import Lesson
from engine.learning.versions import Version, VersionFolder, packed, unpacked
from policies.learning.judging import Agreement
from tests.actors.hosts.test_fleet import write_random_head

TARGET = TargetConfig(dtype="float32")
LANES = ("head/0", "head/1")


class Lane:
    """A host that notes which versions it was given."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.refuses: Exception | None = None

    async def renew(self, version: bytes) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.versions.append(unpacked(version).counts["version"])


class Replica:
    """Its side of learning, and what its requests would bring."""

    def __init__(self, trainer: Trainer) -> None:
        self.lessons = Lessons(LANES, 4096, (1, 3))
        self.hosts = {lane: Lane() for lane in LANES}
        self.numbers: Numbers | None = None
        self.random = np.random.default_rng(0)

        async def exchange(report):  # type: ignore[no-untyped-def]
            return trainer.exchange(report)

        def show(numbers: Numbers, _sent: int, _passed_over: int) -> None:
            self.numbers = numbers

        self.side = Learning("replica", exchange, self.lessons, self.hosts, show)

    @property
    def versions(self) -> list[int]:
        return [*self.lessons.versions.values()]

    def report(self, right_of_canary: float = 0.5) -> None:
        """What requests bring in one interval, of whose first tokens so many were right."""
        width = 2 * TARGET.architecture().hidden_size
        for _ in range(16):
            tokens = [*range(start := int(self.random.integers(50)), start + 40)]
            rows = np.tile(np.array(tokens[:-1])[:, None] % 7, width) / 7
            lesson = Lesson(tokens, 6, rows.astype(np.float32))
            if self.lessons.wanted:
                self.lessons._queue.add(lesson)
        for version in {*self.versions}:
            right = 0.5 if version == min(self.versions) else right_of_canary
            outcome = ServedOutcome(version, "", Agreement(round(40 * right), 40))
            self.lessons._served.extend([outcome] * 8)
        asyncio.run(self.side.report())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "_IDLE_S", 0.01)
    monkeypatch.setattr(trainer_module, "_STEP_TOKENS", 256)
    monkeypatch.setattr(trainer_module, "_SAVED_EVERY_S", 0.0)
    monkeypatch.setattr(trainer_module, "_NICENESS", 0)
    monkeypatch.setattr(trainer_module, "_AFTER_FAILURE_S", 0.1)


@pytest.fixture
def head(tmp_path: Path) -> DrafterConfig:
    learn = LearnConfig(share=64, folder=str(tmp_path / "versions"))
    return write_random_head(tmp_path / "head").model_copy(update={"learn": learn})


class Ended:
    """In place of a trainer's queue: ends its thread."""

    @property
    def answered(self) -> int:
        raise SystemExit


@pytest.fixture
def start(head: DrafterConfig) -> Iterator[Callable[[], Replica]]:
    begun: list[tuple[Trainer, threading.Thread]] = []

    def start() -> Replica:
        trainer = Trainer(head, TARGET)

        def run() -> None:
            with suppress(SystemExit):
                trainer.run()

        thread = threading.Thread(target=run, daemon=True)
        begun.append((trainer, thread))
        thread.start()
        return Replica(trainer)

    yield start
    for trainer, thread in begun:
        trainer._queue = Ended()  # type: ignore[assignment]
        thread.join(30)
        assert not thread.is_alive()


def until(
    replica: Replica, holds: Callable[[Replica], bool], right_of_canary: float = 0.5
) -> list[list[int]]:
    """Reports until it holds. Returns what the lanes served on the way."""
    seen: list[list[int]] = []
    for _ in range(2000):  # minutes, beside other work
        replica.report(right_of_canary)
        if not seen or seen[-1] != replica.versions:
            seen.append(replica.versions)
        if holds(replica):
            return seen
        time.sleep(0.05)
    raise AssertionError(f"it never held: {seen}, {replica.numbers}")


def all_serve_one(replica: Replica) -> bool:
    return min(replica.versions) == max(replica.versions) > 0


def test_a_version_is_served_by_one_lane_then_by_all_and_after_a_restart(
    start: Callable[[], Replica],
) -> None:
    replica = start()
    assert until(replica, all_serve_one) == [[0, 0], [1, 0], [1, 1]]
    assert replica.numbers is not None
    learned = replica.numbers["tokens"]
    again = start()
    assert min(max(until(again, all_serve_one))) >= 1
    assert again.numbers is not None
    assert again.numbers["tokens"] >= learned > 0


def test_a_version_that_is_worse_as_served_or_is_refused_is_rolled_back(
    start: Callable[[], Replica],
) -> None:
    replica = start()
    seen = until(replica, lambda one: one.versions[0] == 2, right_of_canary=0.2)
    assert seen == [[0, 0], [1, 0], [0, 0], [2, 0]]
    assert until(replica, all_serve_one)[-1] == [2, 2]
    replica.hosts[LANES[0]].refuses = InvalidVersion("as the test wants")
    until(replica, lambda one: bool(one.side._refused))
    assert replica.versions == [2, 2]
    replica.hosts[LANES[0]].refuses = None
    until(replica, lambda one: min(one.versions) > max(one.side._refused))


@pytest.mark.parametrize("damage", ["corrupt", "full"])
def test_what_becomes_of_the_disk_stops_nothing(
    damage: str, start: Callable[[], Replica], head: DrafterConfig
) -> None:
    assert head.learn is not None
    folder = Path(head.learn.folder or "")
    if damage == "full":
        folder.write_text("in the folder's place, so that nothing can be written")
    until(start(), all_serve_one)
    for file in folder.rglob("*.*"):
        file.write_bytes(b"not a version")
    assert until(start(), all_serve_one)[0] == [0, 0]


def test_a_candidate_of_another_head_is_left_out_with_its_count(
    start: Callable[[], Replica], head: DrafterConfig
) -> None:
    trainer = Trainer(head, TARGET)
    folder = VersionFolder(trainer._folder, most=2)
    folder.save_candidate(
        Version({"fc.weight": torch.zeros(2, 3)}, {"version": 0, "tokens": 10**9})
    )
    replica = start()
    until(replica, lambda one: one.numbers is not None and one.numbers["tokens"] > 0)
    assert replica.numbers is not None
    assert replica.numbers["tokens"] < 10**9


def test_a_trainer_that_is_lost_and_a_lane_that_fails_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lessons, hosts = Lessons(LANES, 4096), {lane: Lane() for lane in LANES}
    hosts[LANES[0]].refuses = MemoryError()
    content = packed(Version({"fc.weight": torch.zeros(2, 3)}, {"version": 1}))
    answers = [Answer(wanted=1, lanes=dict.fromkeys(LANES, 1), versions={1: content}, numbers={})]  # type: ignore[typeddict-item]

    async def exchange(_report: Report) -> Answer:
        return answers.pop()

    side = Learning("replica", exchange, lessons, hosts, lambda *_: None)
    for _ in range(3):
        asyncio.run(side.report())
    assert lessons.versions == {LANES[0]: 0, LANES[1]: 1}
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert "MemoryError" in logged[0]
    assert "does not answer" in logged[1]


def test_a_lane_that_hangs_holds_up_no_other_and_is_sent_nothing_more() -> None:
    lessons, hosts = Lessons(LANES, 4096), {lane: Lane() for lane in LANES}
    content = packed(Version({"fc.weight": torch.zeros(2, 3)}, {"version": 1}))
    sent = 0

    async def hang(_version: bytes) -> None:
        nonlocal sent
        sent += 1
        await asyncio.Event().wait()

    hosts[LANES[0]].renew = hang  # type: ignore[assignment, method-assign]

    async def exchange(_report: Report) -> Answer:
        return Answer(wanted=1, lanes=dict.fromkeys(LANES, 1), versions={1: content}, numbers={})  # type: ignore[typeddict-item]

    async def report_twice() -> None:
        side = Learning("replica", exchange, lessons, hosts, lambda *_: None)
        await side.report()
        await side.report()

    clock.run(asyncio.wait_for(report_twice(), 60.0))
    assert lessons.versions == {LANES[0]: 0, LANES[1]: 1}
    assert sent == 1

"""The trainer: one for all replicas, learns from what they send and says which version each lane
serves.

An ordinary class; deployments/ makes it a Serve deployment actor. It trains within its share of a
processor, on a thread of low priority. Whatever goes wrong there is logged, and it begins again
from what lies on disk; no replica waits for it.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch

import engine.lean_imports  # noqa: F401  # before models of transformers
from actors.learning.replica_side import Answer, Numbers, Report
from cluster.cache import cache_dir
from cluster.config import DrafterConfig, TargetConfig
from cluster.config.learning import QUEUED_TOKENS
from engine.cpu.threads import set_threads
from engine.drafters.eagle3_head import Eagle3Head
from engine.learning.lessons import LessonMemory
from engine.learning.training import Learner
from engine.learning.versions import Version, VersionFolder, packed, unpacked
from policies.learning.judging import ratio
from policies.learning.rollout import BASE, Rollout

_LOG = logging.getLogger("spindle")
_STEP_TOKENS = 384
"""Answer tokens of one step."""
_LOOKED_AT = 128
"""Requests of each tenant by which versions are compared."""
_SAVED_EVERY_S = 60.0
_IDLE_S = 0.5
_AFTER_FAILURE_S = 30.0
_SILENT_S = 60.0
"""A replica that has not reported for so long has no lanes any more."""
_NICENESS = 19


class _Seen(NamedTuple):
    at_s: float
    lanes: Mapping[str, int]


class Trainer:
    def __init__(self, drafter: DrafterConfig, target: TargetConfig) -> None:
        if drafter.learn is None:
            raise ValueError(f"drafters: {drafter.name} has no section learn")
        self._drafter, self._target, self._learn = drafter, target, drafter.learn
        self._lock = threading.Lock()
        """Guards all below, which both the thread and `exchange` use."""
        self._queue = LessonMemory(QUEUED_TOKENS)
        self._rollout = Rollout(_LOOKED_AT)
        self._versions: dict[int, bytes] = {}
        """The canary and what is served; empty until the head is loaded."""
        self._replicas: dict[str, _Seen] = {}
        self._tokens = self._newest = 0
        self._changed = threading.Event()
        self._rolled_back = False
        """The thread has still to discard what it has learned since."""
        self._steps: deque[tuple[float, float]] = deque(maxlen=round(_SILENT_S / _IDLE_S))
        """When each step of the last minute ended, and the processor's seconds that it took."""

    def exchange(self, report: Report) -> Answer:
        with self._lock:
            now = time.monotonic()
            replica, lanes = report["replica"], report["lanes"]
            self._replicas[replica] = _Seen(now, lanes)
            self._replicas = {
                name: seen for name, seen in self._replicas.items() if seen.at_s > now - _SILENT_S
            }
            for lesson in report["lessons"]:
                self._queue.add(lesson)
            for version, tenant, agreement in report["served"]:
                self._rollout.served(version, tenant, agreement)
            self._decide(report)
            self._newest = max(self._newest, *lanes.values())
            everywhere = [
                f"{name}/{lane}" for name, seen in self._replicas.items() for lane in seen.lanes
            ]
            wanted = self._rollout.versions(everywhere) if self._versions else {}
            own = {lane: wanted[f"{replica}/{lane}"] for lane in lanes if wanted}
            return Answer(
                wanted=max(0, QUEUED_TOKENS - self._queue.tokens) // len(self._replicas),
                lanes=own,
                versions={
                    version: self._versions[version]
                    for lane, version in own.items()
                    if version not in (lanes[lane], *report["refused"])
                },
                numbers=self._numbers(now),
            )

    def _decide(self, report: Report) -> None:
        canary, why = self._rollout.canary, "it is worse as served"
        if canary in report["refused"]:
            self._rollout.roll_back()
            why = "a lane cannot load it"
        elif not self._rollout.decide():
            return
        serving = self._rollout.serving
        self._versions = {serving: self._versions[serving]}
        self._rolled_back = serving != canary
        self._changed.set()
        name = self._drafter.name
        if self._rolled_back:
            _LOG.warning("version %s of %s is rolled back: %s", canary, name, why)
        else:
            _LOG.info("all lanes serve version %s of %s", canary, name)

    def _numbers(self, now: float) -> Numbers:
        pairs = self._rollout.window.pairs
        recent = [spent_s for at_s, spent_s in self._steps if at_s > now - _SILENT_S]
        return Numbers(
            version=self._rollout.serving,
            tokens=self._tokens,
            share=sum(recent) / _SILENT_S,
            served=ratio(served for served, _ in pairs),
            candidate=ratio(candidate for _, candidate in pairs),
        )

    def run(self) -> None:
        """Trains, on the thread that calls it, for ever."""
        os.nice(_NICENESS)  # of this thread and those that it starts
        while True:
            try:
                self._train()
            except Exception:
                _LOG.exception("learning begins again from what was kept")
                time.sleep(_AFTER_FAILURE_S)

    def _train(self) -> None:
        set_threads(self._learn.threads)
        device = "cuda" if self._learn.gpus else "cpu"
        checkpoint = self._drafter.path()
        assert checkpoint is not None
        head = Eagle3Head.load(
            checkpoint, device, torch.float32, self._target.path(), trainable=True
        )
        learner = Learner(head, self._learn.memory_tokens)
        folder = VersionFolder(self._folder, self._learn.versions)
        self._restore(learner, folder)
        saved_s = time.monotonic()
        while True:
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            with self._lock:
                enough = self._queue.answered >= _STEP_TOKENS
                lessons = self._queue.take(_STEP_TOKENS) if enough else []
            if lessons:
                pairs = learner.learn(lessons)
                with self._lock:
                    self._tokens = learner.tokens
                    if not self._changed.is_set():  # else they compare with another version
                        for lesson, (served, candidate) in zip(lessons, pairs, strict=True):
                            self._rollout.judged(lesson.tenant, served, candidate)
                self._offer(learner, folder)
                if time.monotonic() > saved_s + _SAVED_EVERY_S:
                    folder.save_candidate(self._version(learner, self._rollout.serving))
                    saved_s = time.monotonic()
            spent_s = time.process_time() - began_cpu_s
            with self._lock:
                self._steps.append((time.monotonic(), spent_s))
            until_s = max(began_s + spent_s / self._learn.share, time.monotonic() + _IDLE_S)
            while (left_s := until_s - time.monotonic()) > 0:
                if self._changed.wait(left_s):
                    self._changed.clear()
                    self._settle(learner, folder)

    def _restore(self, learner: Learner, folder: VersionFolder) -> None:
        """Goes on from what the folder has, or from the head of the config."""
        base = Version(learner.weights(), {"version": BASE, "tokens": 0})
        served, candidate = folder.served() or base, folder.candidate()
        try:
            learner.compare_with(served.weights)
            learner.go_on_from((candidate or served).weights)
        except ValueError as error:
            _LOG.error("the versions in %s are not used: %s", self._folder, error)
            served, candidate = base, None
            learner.compare_with(base.weights)
        learner.tokens = (candidate or served).counts["tokens"]
        with self._lock:
            number = served.counts["version"]
            self._rollout = Rollout(_LOOKED_AT, serving=number)
            self._newest = max(self._newest, folder.newest)
            self._versions = {number: packed(served)}
            self._tokens = learner.tokens

    def _offer(self, learner: Learner, folder: VersionFolder) -> None:
        """Makes the candidate a version, which one lane serves, if it is better."""
        with self._lock:
            if not self._rollout.wants_version:
                return
            if self._rollout.canary is not None:  # with which nobody drafted
                del self._versions[self._rollout.canary]
            self._newest += 1
            version = self._version(learner, self._newest)
            self._versions[self._newest] = packed(version)
            self._rollout.begin(self._newest)
            gains = self._numbers(time.monotonic())
        _LOG.info(
            "version %d of %s: %.2f tokens per forward, the one served %.2f; one lane tries it",
            self._newest,
            self._drafter.name,
            gains["candidate"],
            gains["served"],
        )
        folder.add(version)

    def _settle(self, learner: Learner, folder: VersionFolder) -> None:
        """Carries out what `_decide` has decided."""
        with self._lock:
            number, rolled_back = self._rollout.serving, self._rolled_back
            content = self._versions[number]
        served = unpacked(content)
        learner.compare_with(served.weights)
        if rolled_back:
            learner.go_on_from(served.weights)
        else:
            folder.serve(number)

    def _version(self, learner: Learner, number: int) -> Version:
        return Version(learner.weights(), {"version": number, "tokens": learner.tokens})

    @property
    def _folder(self) -> Path:
        """The folder of this head and this target alone."""
        models = f"{self._target.model}\0{self._drafter.model}".encode()
        root = Path(self._learn.folder) if self._learn.folder else cache_dir() / "learned"
        return root / f"{self._drafter.name}-{blake2b(models, digest_size=6).hexdigest()}"

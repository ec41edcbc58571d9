"""Shared by all benchmarks: flat records, a printed table, `--json FILE`, and paired ratios."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

_RESAMPLES = 2000
_MAX_HALF_WIDTH = 0.05
"""A ratio whose 95% interval is wider than ±5% of its median is not resolved."""


@dataclass(frozen=True, slots=True)
class Record:
    """One result: a line of the printed table and an object of the JSON file."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None

    @classmethod
    def over(cls, reference: float, name: str, value: float, unit: str) -> Self:
        """A record whose ratio is value ÷ reference."""
        return cls(name, value, unit, reference, value / reference)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios and its 95% bootstrap interval."""

    median: float
    low: float
    high: float

    @property
    def resolved(self) -> bool:
        """Whether the interval is narrow enough to compare the ratio with a bound."""
        return self.high - self.low <= 2 * _MAX_HALF_WIDTH * self.median

    def at_most(self, bound: float) -> bool:
        return self.resolved and self.low <= bound

    def __str__(self) -> str:
        return f"{self.median:.3f}, {self.low:.3f} to {self.high:.3f}"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratio ours[i] / theirs[i], each pair measured one directly after the other."""
    if len(ours) < 20:
        raise ValueError(f"{len(ours)} pairs are too few for an interval: take at least 20")
    ratios = np.array(ours) / np.array(theirs)
    resamples = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(resamples, axis=1), (2.5, 97.5))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def parser(description: str | None) -> argparse.ArgumentParser:
    """With `--json`, which every benchmark takes."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--json", type=Path, help="also write the records to this file")
    return arguments


def publish(records: Sequence[Record], file: Path | None) -> None:
    """Prints the table, and writes the records as JSON if a file is given."""
    width = max(len(record.name) for record in records)
    for record in records:
        line = f"{record.name:{width}} {record.value:12.4g} {record.unit}"
        if record.reference is not None:
            line += f"   (reference {record.reference:.4g}"
            line += ")" if record.ratio is None else f", ratio {record.ratio:.3f})"
        print(line)
    if file is not None:
        file.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")

"""What every benchmark shares: flat records, a printed table, `--json FILE`, and honest ratios."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

_RESAMPLES = 2000
_WIDEST = 0.05
"""A ratio whose 95% interval reaches further than ±5% says nothing."""


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios with its bootstrap 95% interval."""

    median: float
    low: float
    high: float

    @property
    def resolved(self) -> bool:
        return self.high - self.low <= 2 * _WIDEST * self.median

    def at_least(self, mark: float) -> bool:
        return self.resolved and self.high >= mark

    def at_most(self, mark: float) -> bool:
        return self.resolved and self.low <= mark


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of ours[i] / theirs[i], measured one right after the other."""
    if len(ours) < 20:
        raise ValueError(f"{len(ours)} pairs are too few for an interval: take at least 20")
    ratios = np.array(ours) / np.array(theirs)
    drawn = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def parser(description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--json", type=Path, help="also write the records there")
    return arguments


def publish(records: Sequence[Record], file: Path | None) -> None:
    """Prints the table; writes the records as JSON where a file is given."""
    width = max(len(record.name) for record in records)
    for record in records:
        line = f"{record.name:{width}} {record.value:12.4g} {record.unit}"
        if record.reference is not None:
            line += f"   (reference {record.reference:.4g}"
            line += ")" if record.ratio is None else f", ratio {record.ratio:.3f})"
        print(line)
    if file is not None:
        file.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")

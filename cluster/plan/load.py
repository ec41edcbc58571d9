"""The requests that a plan is made for: those of a trace, or conversations of usual lengths."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import inf
from pathlib import Path
from typing import Any

from cluster.checkpoint_files import first_line
from cluster.plan.acceptance import Text
from cluster.plan.simulator.workload import Arrival, Lengths, draw
from policies.request import Slo

USUAL = Lengths(prompt_mean=1155.0, prompt_spread=1.0, output_mean=211.0, output_spread=0.8)
"""Means of the conversations in Azure's trace of 2023 (Splitwise, ISCA 2024)."""
CLIENTS = 16
"""Requests at once for each GPU where neither a trace nor `--clients` says how many; on a machine
without GPUs for all of it."""
_MOST = 160
"""Requests that are simulated, of one replica."""
_IN_TURN = 4
"""Requests of each client, at least while there are fewer than _MOST."""
_FIELDS = "arrival_s, prompt_tokens or prompt, output_tokens or output"


Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Load:
    arrivals: Sequence[Arrival]
    clients: int | None
    """Requests at once, each followed by another; None: they arrive at their times."""
    texts: Sequence[Text] = ()

    def share(self, replicas: int) -> tuple[list[Arrival], int | None]:
        """What one of so many replicas gets, and its clients."""
        if self.clients is None:
            return list(self.arrivals[::replicas][:_MOST]), None
        clients = -(-self.clients // replicas)
        count = max(clients, min(_MOST, _IN_TURN * max(8, clients)))
        requests = islice(cycle(self.arrivals), count)
        return [replace(one, name=f"r{n}", at_s=0.0) for n, one in enumerate(requests)], clients


def usual(clients: int, slo: Slo, context: int) -> Load:
    """`context`: the longest that the model takes."""
    lengths = replace(USUAL, longest=min(USUAL.longest, context // 2))
    arrivals = draw([0.0] * _MOST, 0, lengths)
    return Load([replace(one, slo=slo) for one in arrivals], clients)


def traced(file: Path, tokenize: Tokenize, slo: Slo, context: int, clients: int | None) -> Load:
    """A CSV file with a header, or JSON lines. Raises ValueError."""
    arrivals: list[Arrival] = []
    texts = []
    for where, row in _rows(file):
        try:
            prompt, output = (_tokens(row, name, tokenize) for name in ("prompt", "output"))
            at_s = float(row.get("arrival_s") or 0.0)
            lengths = [one if isinstance(one, int) else len(one) for one in (prompt, output)]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"--trace: {where}: {first_line(error)}; a row has {_FIELDS}"
            ) from error
        if min(lengths) < 1 or not 0 <= at_s < inf:
            raise ValueError(f"--trace: {where}: a length below 1, or a time that is not from 0 on")
        answered = min(lengths[1], context // 2)
        asked = min(lengths[0], context - answered)
        arrivals.append(
            Arrival(f"r{len(arrivals)}", at_s, asked, answered, max_tokens=answered, slo=slo)
        )
        if not isinstance(prompt, int) and not isinstance(output, int):
            texts.append(Text(prompt, output))
    if not arrivals:
        raise ValueError(f"--trace: {file} has no requests; a row has {_FIELDS}")
    arrivals.sort(key=lambda one: one.at_s)
    if clients is None and arrivals[-1].at_s <= arrivals[0].at_s:
        raise ValueError(
            f"--trace: the requests of {file} arrive at once: add arrival_s, or set --clients"
        )
    return Load(arrivals, clients, texts)


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with where it is."""
    try:
        with file.open(newline="") as lines:
            rows = csv.DictReader(lines) if file.suffix == ".csv" else map(json.loads, lines)
            for number, row in enumerate(rows, start=1):
                if not isinstance(row, Mapping):
                    raise ValueError(f"row {number} is no object")
                yield f"{file}, row {number}", row
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"--trace: {file} cannot be read: {first_line(error)}") from error


def _tokens(row: Mapping[str, Any], name: str, tokenize: Tokenize) -> int | Sequence[int]:
    """A text's tokens, or how many there are."""
    text = row.get(name)
    if isinstance(text, str) and text:
        return tokenize(text)
    if isinstance(text, list) and text:
        return [int(token) for token in text]
    if row.get(f"{name}_tokens") is None:
        raise ValueError(f"{name}_tokens is missing")
    return int(row[f"{name}_tokens"])

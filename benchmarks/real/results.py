"""Records of a contest on real prompts: those of the peers, and where drafts were accepted."""

from collections.abc import Iterator, Sequence

from benchmarks.report import Record
from benchmarks.serving.contenders import TurnResult
from benchmarks.serving.contest import PairedTurn, Results
from benchmarks.serving.peers import report

_DEEPEST = 8
"""Positions that are reported."""


def real_records(results: Results, prefix: str) -> list[Record]:
    """Of all contenders in the results, and of plain vLLM in their turns."""
    records = report(results, prefix)
    for (name, clients), turns in results.items():
        records += _of_rounds(f"{prefix}/{name}/c{clients}", turns)
    return records


def _of_rounds(name: str, turns: Sequence[PairedTurn]) -> Iterator[Record]:
    """A round: one forward for one request. A request's first has no draft and is left out."""
    by_category: dict[str, list[int]] = {}
    for turn in turns:
        for category, rounds in zip(turn.domains, turn.ours.rounds, strict=True):
            by_category.setdefault(category, []).extend(rounds[1:])
    sizes = [size for own in by_category.values() for size in own]
    if not sizes:
        return
    yield Record(f"{name}/tokens_per_round", _mean(sizes), "tokens")
    for category, own in sorted(by_category.items()):
        if own:
            yield Record(f"{name}/{category}/tokens_per_round", _mean(own), "tokens")
    for position in range(1, min(_DEEPEST, max(sizes) - 1) + 1):
        reached = sum(size > position for size in sizes) / len(sizes)
        yield Record(f"{name}/accepted/{position}", reached, "of rounds")
    ours: list[TurnResult] = [turn.ours for turn in turns]
    drafted = sum(turn.drafted for turn in ours)
    if drafted:
        accepted = sum(sizes) - len(sizes)
        yield Record(f"{name}/acceptance", accepted / drafted, "of draft tokens")
        forwards = sum(turn.forwards for turn in ours)
        draft_ms = 1000 * sum(turn.draft_s for turn in ours) / forwards
        yield Record(f"{name}/draft_ms", draft_ms, "ms per forward")


def _mean(sizes: Sequence[int]) -> float:
    return sum(sizes) / len(sizes)

"""Records of a contest: goodput over plain vLLM's, Spindle over the best, and accepted drafts."""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.real.contenders import PLAIN
from benchmarks.real.contest import PairedTurn, Results, goodput, goodput_ratio, ratios_by_round
from benchmarks.real.spindle import TurnResult
from benchmarks.report import Record

SPINDLE = "spindle"
FINALISTS = 2
"""Methods of vLLM in the final, besides plain decoding; and at most so many of Spindle's."""
_DEEPEST = 8
"""Positions that are reported."""


def real_records(results: Results, prefix: str) -> list[Record]:
    """The records of all contenders, and of plain vLLM in their turns."""
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


def finalists_of(results: Results, load: int) -> list[str]:
    """The best of Spindle's contenders and of the others in the heats."""
    at_load = {name: turns for (name, clients), turns in results.items() if clients == load}
    ratios = {name: goodput_ratio(turns) for name, turns in at_load.items()}
    best_first = sorted(ratios, key=ratios.__getitem__, reverse=True)
    ours = [name for name in best_first if _is_ours(name)]
    theirs = [name for name in best_first if not _is_ours(name)]
    return ours[:FINALISTS] + theirs[:FINALISTS]


def _is_ours(name: str) -> bool:
    return name.startswith(SPINDLE)


def report(results: Results, prefix: str) -> list[Record]:
    records = []
    for clients in dict.fromkeys(clients for _, clients in results):
        by_name = {name: turns for (name, load), turns in results.items() if load == clients}
        by_name[PLAIN] = [_plain(turn) for turns in by_name.values() for turn in turns]
        for name, turns in by_name.items():
            records += _contender_records(f"{prefix}/{name}/c{clients}", turns)
    return records


def compared_with_best(finals: Results, prefix: str) -> tuple[list[Record], list[str]]:
    """Spindle over the best of vLLM's, plain decoding included; and a line where it is behind."""
    records, behind = [], []
    for (name, clients), turns in finals.items():
        if not _is_ours(name):
            continue
        theirs = {
            other: other_turns
            for (other, load), other_turns in finals.items()
            if load == clients and not _is_ours(other)
        }
        theirs[PLAIN] = [_plain(turn) for turn in turns]
        best = max(theirs, key=lambda other: goodput_ratio(theirs[other]))
        ours, reference = goodput_ratio(turns), goodput_ratio(theirs[best])
        over = f"{prefix}/{name}/c{clients}/over_best"
        records.append(Record.over(reference, over, ours, "x plain"))
        if ours <= reference:
            behind.append(
                f"{name} at {clients} clients: behind {best}, {ours / reference:.2f} of its "
                f"goodput (over plain {ratios_by_round(turns)} for "
                f"{ratios_by_round(theirs[best])} by round)"
            )
    return records, behind


def slowest_domain(turns: Sequence[PairedTurn]) -> float:
    """The lowest of the domains' medians of their requests' speeds over plain vLLM's: long drafts
    for some requests lengthen the forwards that others share."""
    speeds: dict[str, list[float]] = {}
    for ours, plain, domains in turns:
        for domain, ours_s, plain_s in zip(
            domains, ours.latencies_s, plain.latencies_s, strict=True
        ):
            speeds.setdefault(domain, []).append(plain_s / ours_s)
    return min(median(of_domain) for of_domain in speeds.values())


def _plain(turn: PairedTurn) -> PairedTurn:
    """Plain vLLM against itself."""
    return PairedTurn(turn.plain, turn.plain, turn.domains)


def _contender_records(name: str, turns: Sequence[PairedTurn]) -> list[Record]:
    ours, plain = [turn.ours for turn in turns], [turn.plain for turn in turns]
    forwards = sum(turn.forwards for turn in ours)
    tokens, seconds = sum(turn.tokens for turn in ours), sum(turn.seconds for turn in ours)
    return [
        Record(f"{name}/goodput", goodput(ours), "tokens/s", goodput(plain), goodput_ratio(turns)),
        Record(f"{name}/slowest_domain", slowest_domain(turns), "x plain"),
        Record(f"{name}/tokens_per_forward", tokens / forwards, "tokens"),
        Record(f"{name}/forward_ms", 1000 * seconds / forwards, "ms"),
    ]

"""Open-loop rounds: when requests arrive, what their latency counts, and what is reported."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.real.contenders import PLAIN
from benchmarks.real.contest import Contender
from benchmarks.real.spindle import PeerRequest, serve_timed
from benchmarks.real.trace import arriving, trace_turns, windows_of
from benchmarks.simulator.workload import Arrival
from tests.benchmarks.real.scripted_server import MAX_TOKENS, ScriptedServer, scripted_requests

GAPS_S = (1.0, 7.0, 2.0, 10.0)


def arrivals(count: int, output_tokens: int = MAX_TOKENS) -> list[Arrival]:
    """The gaps again and again, from a time that is not 0."""
    at_s = [100.0 + sum(GAPS_S[i % len(GAPS_S)] for i in range(number)) for number in range(count)]
    return [Arrival(f"r{i}", t, 1, output_tokens, MAX_TOKENS) for i, t in enumerate(at_s)]


def test_requests_arrive_like_the_trace_at_a_share_of_plain_vllms_speed() -> None:
    stream = scripted_requests()
    requests = [next(stream) for _ in GAPS_S]
    with closing(Contender(PLAIN, ScriptedServer)) as plain:  # it serves any batch in one second
        paced = arriving(plain, requests, arrivals(5), load=0.5)
    assert [request.arrives_s for request in paced] == pytest.approx([0, 0.1, 0.8, 1.0])
    assert [request.max_tokens for request in paced] == [1, 2, 3, 4], "where they end"
    assert not any(request.stop for request in paced)


def written(path: Path, trace: Sequence[Arrival]) -> Path:
    rows = [f"{one.at_s},{one.prompt_tokens},{one.output_tokens}\n" for one in trace]
    path.write_text("".join(["arrival_s,prompt_tokens,output_tokens\n", *rows]))
    return path


def test_each_round_has_new_requests_and_the_next_window_of_the_trace(tmp_path: Path) -> None:
    windows = windows_of(written(tmp_path / "trace.csv", arrivals(13)), 4, 3)
    assert [window[0].at_s for window in windows] == [100, 110, 128, 141]
    with closing(Contender(PLAIN, ScriptedServer)) as plain:
        results = trace_turns(
            plain, {"drafting": ScriptedServer}, scripted_requests(), windows, (50, 100)
        )
    assert {key: len(turns) for key, turns in results.items()} == {
        ("drafting", 50): 2,
        ("drafting", 100): 2,
    }
    lengths = [turn.ours.lengths for turns in results.values() for turn in turns]
    assert len(set(lengths)) == len(lengths), "requests that no contender has seen"


def test_a_trace_that_cannot_be_replayed_is_refused_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(SystemExit, match="--trace: 12 arrivals are too few for 4 windows of 3"):
        windows_of(written(tmp_path / "short.csv", arrivals(12)), 4, 3)
    with pytest.raises(SystemExit, match="--trace: 2 requests or more arrive at once"):
        windows_of(written(tmp_path / "burst.csv", [arrivals(1)[0]] * 5), 2, 2)
    with pytest.raises(SystemExit, match=r"--trace: .*none.csv cannot be read"):
        windows_of(tmp_path / "none.csv", 1, 1)
    (tmp_path / "other.csv").write_text("time,prompt\n1,2\n")
    with pytest.raises(SystemExit, match=r"--trace: .*cannot be read: KeyError\('arrival_s'\)"):
        windows_of(tmp_path / "other.csv", 1, 1)


def test_a_request_waits_for_its_arrival_and_its_latency_counts_from_it() -> None:
    sent_s: list[float] = []

    async def send(request: PeerRequest) -> Sequence[int]:
        sent_s.append(time.monotonic())
        if request.prompt[0] == 1:
            time.sleep(0.2)  # the loop is busy when the next request arrives
        return [1]

    requests = [PeerRequest((n,), 0.0, 1, arrives_s=at_s) for n, at_s in enumerate((0, 0.1, 0.2))]
    started_s = time.monotonic()
    served = asyncio.run(serve_timed(requests, len(requests), send))
    assert sent_s[1] >= started_s + 0.1
    assert sent_s[2] >= sent_s[1] + 0.2
    assert served.latencies_s[2] >= 0.1

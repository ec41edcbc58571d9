"""Compares the default config with llama.cpp's server on the same file of weights.

`python -m benchmarks.real.llama_cpp --data DIR [--clients 1 4 16] [--rounds 3] [--json FILE]`

Both are served over HTTP on this machine, with two threads: Spindle by `cluster.yaml`, with its
drafters and without; llama.cpp by the wheel `xllamacpp`, plain and with its own n-gram drafts
(`pip install xllamacpp`). Greedy answers of `--max-tokens` tokens to prompts that nobody has seen;
in each round all serve the same ones, in turns. Names: llama_cpp/CONTENDER/cCLIENTS (tokens per
second, the median of the rounds; `reference`: plain llama.cpp), and llama_cpp/CONTENDER/prefill
(tokens per second of a prompt of 1,024).
"""

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from benchmarks.processes import end_after_ray
from benchmarks.real.prompts import real_prompts
from benchmarks.report import Record, parser, publish
from benchmarks.serving.app import running
from benchmarks.serving.closed_loop import closed_loop
from benchmarks.serving.requests import Request
from cluster.built_in_models import SMOLLM2, smollm2_path
from cluster.check import read
from cluster.fetch import download_gguf

THREADS = 2
SLOTS = 16
CONTEXT = 2048
"""Tokens that each slot has room for."""
PLAIN = "plain"
NGRAM = "ngram"
WITHOUT_DRAFTS = {"speculation": "off", "cache_salt": "plain"}
"""Drafts would find the answers that the same server gave without them, but for the salt."""
PREFILL_TOKENS = 1024
PORT = 8765
CONFIG = Path("cluster.yaml")

Ask = Callable[[int, Request], Awaitable[int]]
"""Sends a request for so many tokens; returns how many came."""


def main(arguments: Sequence[str] | None = None) -> None:
    own = parser(__doc__)
    own.add_argument("--data", type=Path, default=Path("../shared/data"))
    own.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    own.add_argument("--requests", type=int, default=16, help="of a round, at least one a client")
    own.add_argument("--max-tokens", type=int, default=64)
    own.add_argument("--rounds", type=int, default=3)
    options = own.parse_args(arguments)
    needed = options.rounds * sum(max(options.requests, n) for n in options.clients)
    prompts = [one for one in real_prompts(options.data, smollm2_path()) if _fits(one, options)]
    if len(prompts) < needed:
        own.error(f"--rounds: there are {len(prompts)} prompts, and {needed} would be asked")
    with ExitStack() as servers:
        urls = {
            f"llama_cpp_{kind}": servers.enter_context(llama_cpp(kind)) for kind in (PLAIN, NGRAM)
        }
        urls["spindle"] = servers.enter_context(running(_arguments(), PORT)).url
        publish(asyncio.run(_measured(urls, prompts, options)), options.json)
    end_after_ray(0)


def _fits(request: Request, options: Any) -> bool:
    return len(request.prompt) + options.max_tokens <= CONTEXT


def _arguments() -> dict[str, Any]:
    (application,) = read(CONFIG)
    return {**application.args, "grpc": None}


@contextmanager
def llama_cpp(kind: str) -> Iterator[str]:
    """The server's URL, in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with TemporaryDirectory() as folder:
        file = download_gguf(Path(folder))
        process = spawn.Process(target=_run_server, args=(str(file), kind, theirs), daemon=True)
        process.start()
        try:
            if not ours.poll(120):
                raise TimeoutError("llama.cpp's server has not started within 120 s")
            yield ours.recv()
        finally:
            process.kill()
            process.join()


def _run_server(file: str, kind: str, started: Any) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.port = _free_port()
    if kind == NGRAM:
        params.speculative.types = [
            xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE
        ]
    server = xllamacpp.Server(params)
    started.send(server.listening_address)
    while True:
        time.sleep(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _measured(
    urls: Mapping[str, str], prompts: Sequence[Request], options: Any
) -> list[Record]:
    records = []
    async with ClientSession(timeout=ClientTimeout(600)) as session:
        contenders: dict[str, Ask] = {
            "llama_cpp": partial(_ask, session, urls["llama_cpp_plain"], {}),
            "llama_cpp_ngram": partial(_ask, session, urls["llama_cpp_ngram"], {}),
            "spindle_plain": partial(_ask, session, urls["spindle"], WITHOUT_DRAFTS),
            "spindle": partial(_ask, session, urls["spindle"], {}),
        }
        for name, ask in contenders.items():
            await ask(1, Request("", tuple(range(100, 160))))
            prompt = tuple(7 + number * 31 % 40_000 for number in range(PREFILL_TOKENS))
            started = time.perf_counter()
            await ask(1, Request("", prompt))
            speed = PREFILL_TOKENS / (time.perf_counter() - started)
            records.append(Record(f"llama_cpp/{name}/prefill", speed, "tokens/s"))
        unseen = iter(prompts)
        for clients in options.clients:
            speeds: dict[str, list[float]] = {name: [] for name in contenders}
            for number in range(options.rounds):
                turn = [next(unseen) for _ in range(max(options.requests, clients))]
                order = [*contenders][number % 4 :] + [*contenders][: number % 4]
                for name in order:
                    send = partial(_answer, contenders[name], options.max_tokens)
                    lengths, seconds = await closed_loop(turn, clients, send)
                    speeds[name].append(sum(lengths) / seconds)
                    print(f"{clients} clients, {name}: {speeds[name][-1]:.1f}", flush=True)
            plain = median(speeds["llama_cpp"])
            for name, own in speeds.items():
                record = Record.over(plain, f"llama_cpp/{name}/c{clients}", median(own), "tokens/s")
                records.append(record)
    return records


async def _answer(ask: Ask, tokens: int, _: int, request: Request) -> int:
    return await ask(tokens, request)


async def _ask(
    session: ClientSession, url: str, extra: Mapping[str, Any], tokens: int, request: Request
) -> int:
    body = {
        "model": SMOLLM2,
        "prompt": list(request.prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **extra,
    }
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{url}: {answer}")
        return int(answer["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()

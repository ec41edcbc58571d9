"""The comparison of scores, against a server that answers from a table."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real.lm_eval_gsm8k import main

ANSWERS = {"1 + 1?": ("It is 2.", [5, 6]), "2 + 3?": ("So 4", [7, 8])}


class Server(ThreadingHTTPServer):
    """One of the answers has another token id where nothing is speculated."""

    differs = False
    bodies: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        plain = body.get("speculation") == "off"
        text, ids = ANSWERS[body["messages"][0]["content"]]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "token_ids": [*ids[:-1], ids[-1] + (plain and self.server.differs)],
            "spindle": {"rounds": 2 if plain else 1},
        }
        answer = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Server(("127.0.0.1", 0), Handler) as one:
        one.bodies = []
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


def test_both_ways_are_scored_and_their_tokens_compared(server: Server, tmp_path: Path) -> None:
    rows = [
        {"question": question, "answer": f"Add. #### {answer}"}
        for question, answer in (("1 + 1?", 2), ("2 + 3?", 5), ("never asked", 0))
    ]
    file = tmp_path / "gsm8k_questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = tmp_path / "records.json"
    arguments = ["--url", f"http://127.0.0.1:{server.server_port}", "--data", str(tmp_path)]
    arguments += ["--questions", "2", "--json", str(records)]
    main(arguments)
    found = {record["name"]: record for record in json.loads(records.read_text())}
    score = found["real/lm_eval/gsm8k/score"]
    assert (score["value"], score["reference"]) == (0.5, 0.5)
    assert found["real/lm_eval/gsm8k/same_answers"]["value"] == 1
    rounds = found["real/lm_eval/gsm8k/tokens_per_round"]
    assert (rounds["value"], rounds["reference"]) == (2, 1)
    assert [body.get("speculation") for body in server.bodies] == [None, None, "off", "off"]
    assert all(body["temperature"] == 0 for body in server.bodies)

    server.differs = True
    with pytest.raises(SystemExit, match="answers differ"):
        main(arguments)

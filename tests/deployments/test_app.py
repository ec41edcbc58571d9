"""The application as `make serve` runs it, over real HTTP, on the uninflated target in fp32."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.config import AppConfig
from cluster.zoo import TARGET, model_path
from engine.params import SamplingParams
from tests import reference

ROOT = Path(__file__).parents[2]
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
PROMPT = "<|user|>Count to 7.<|end|><|assistant|>"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The default config but for the target's size and dtype, the port, small limits and fixed
    policies."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    config["http_options"]["port"] = PORT
    (application,) = config["applications"]
    application["args"] |= {
        "target": {"dtype": "float32"},
        "limits": {"max_batch": 4, "max_waiting": 2},
        # Our own policies may find that drafting does not pay for so small a target.
        "policies": {"selection": {"name": "fixed"}, "speculation": {"name": "fixed"}},
    }
    path = tmp_path_factory.mktemp("serve") / "cluster.yaml"
    path.write_text(yaml.safe_dump(config))
    log = (path.parent / "log").open("w+")
    command = [
        str(Path(sys.executable).parent / "serve"),
        "run",
        "--working-dir",
        str(ROOT),
        str(path),
    ]
    server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(120):
            try:
                if requests.get(f"{URL}/health", timeout=5).ok:
                    break
            except (requests.ConnectionError, requests.Timeout):
                assert server.poll() is None, (path.parent / "log").read_text()
            time.sleep(0.5)
        else:
            pytest.fail((path.parent / "log").read_text())
        yield URL
    finally:
        server.send_signal(signal.SIGINT)  # `serve run` takes its own Ray down with it
        server.wait(60)


def ask(app: str, **fields: Any) -> requests.Response:
    body = {"model": "target", "prompt": PROMPT, "max_tokens": 40, **fields}
    stream = bool(fields.get("stream"))
    return requests.post(f"{app}/v1/completions", json=body, stream=stream, timeout=60)


def expected(temperature: float, seed: int, max_tokens: int = 40) -> str:
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    model = AutoModelForCausalLM.from_pretrained(
        model_path(TARGET), dtype=torch.float32, attn_implementation="eager"
    )
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, stop_token_ids=(tokenizer.eos_token_id,)
    )
    ids = tokenizer(PROMPT)["input_ids"]
    said = reference.generate(model.eval(), ids, params, seed)
    text: str = tokenizer.decode(said, skip_special_tokens=True)
    return text


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (1.0, 5)])
def test_text_is_the_references_whole_and_streamed(app: str, temperature: float, seed: int) -> None:
    whole = ask(app, temperature=temperature, seed=seed).json()
    assert whole["choices"][0]["text"] == expected(temperature, seed)
    lines = ask(app, temperature=temperature, seed=seed, stream=True).iter_lines()
    events = [line.removeprefix(b"data: ") for line in lines if line]
    assert events[-1] == b"[DONE]"
    chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(chunk["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert chunks[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert len(chunks) < whole["usage"]["completion_tokens"], "one event per verdict, not per token"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("temperature", {"temperature": -1}),
        ("top_p", {"top_p": 2}),
        ("max_tokens", {"max_tokens": 100_000}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [5, 999_999]}),
        ("seed", {"seed": -1}),
        ("best_of", {"best_of": 3}),
    ],
)
def test_a_bad_field_is_named_in_openais_shape(
    app: str, field: str, fields: dict[str, Any]
) -> None:
    answer = ask(app, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert field in error["message"]


def test_another_model_is_404(app: str) -> None:
    assert ask(app, model="gpt").status_code == 404


def test_beyond_the_limits_is_429_and_all_others_complete(app: str) -> None:
    """6 run or wait; of 12 at once some are refused, and none hangs or is lost."""
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda seed: ask(app, seed=seed, temperature=1), range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(served) == 12
    assert len(served) >= 6
    assert all(answer.headers["Retry-After"] for answer in refused)
    assert ask(app, temperature=0, max_tokens=2).ok


def test_a_client_that_goes_away_frees_its_place(app: str) -> None:
    for _ in range(8):  # more than the limits, were they not freed
        with ask(app, stream=True, temperature=1.0, max_tokens=1500) as answer:
            next(answer.iter_lines())
    for _ in range(20):
        if ask(app, temperature=0, max_tokens=2).ok:
            return
        time.sleep(0.2)
    pytest.fail("places of clients that went away are still taken")


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("targett", {"targett": {}}),
        ("target.model", {"target": {"model": "zoo/nothing"}}),
        ("target.model", {"target": {"model": "/no/such/folder"}}),
        ("drafters.0.model", {"drafters": [{"name": "a", "model": "zoo/nothing"}]}),
        ("drafters", {"drafters": [{"name": "a", "kind": "ngram"}] * 2}),
        ("model: a drafter", {"drafters": [{"name": "a"}]}),
        (
            "speculation.planner",
            {"policies": {"speculation": {"name": "planner", "options": {"x": 1}}}},
        ),
        ("selection: there is no 'best'", {"policies": {"selection": {"name": "best"}}}),
        ("forward_tokens", {"limits": {"max_batch": 8, "forward_tokens": 4}}),
        ("target.dtype", {"target": {"dtype": "int8"}}),
    ],
)
def test_a_bad_config_names_its_field(field: str, args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        AppConfig.model_validate(args)

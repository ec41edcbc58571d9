"""Clients of others: schemathesis and lm-eval on either backend, and vLLM's benchmark client.

Worth its seconds: these are what a user points at the endpoint first, and each sends fields and
reads answers in its own way.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.core.result import Ok
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.built_in_models import TARGET, model_path
from tests.deployments.served.application import KEYS, OPERATOR_KEY

KEY = KEYS["beta"]
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
SERVED_ERRORS = 500
"""Statuses from here on are errors of the server."""
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.fixture(autouse=True)
def _no_verifier_is_lost(app: str) -> Iterator[None]:
    """A verifier that comes back in time would hide that a request had ended it."""

    def restarts() -> list[str]:
        headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        text = httpx.get(f"{app}/metrics", headers=headers).raise_for_status().text
        return re.findall(r"^spindle_restarts_total\{[^}]*verifier.*$", text, re.MULTILINE)

    before = restarts()
    yield
    assert restarts() == before


def ask(case: Case[Any]) -> Any:
    """Sends it with a model and a length of ours: beyond the 404, and for time, not coverage."""
    body = case.body
    if isinstance(body, dict) and "model" in body:
        body["model"] = TARGET
        names = ("max_completion_tokens", "max_output_tokens")
        others = "max_output_tokens" if "input" in body else "max_tokens"
        limit = next((name for name in names if name in body), others)
        body[limit] = 8
    answer = case.call(headers=AUTHORIZED, timeout=60)
    assert answer.status_code < SERVED_ERRORS, answer.text
    return answer


def test_no_request_makes_the_server_fail(app: str) -> None:
    """Whatever fits the app's own OpenAPI document. (Schemathesis's own pytest plugin does not
    know this pytest.)"""
    paths = set()
    document = schemathesis.openapi.from_url(f"{app}/openapi.json", headers=AUTHORIZED)
    for found in document.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        paths.add(operation.path)

        @given(case=operation.as_strategy())
        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        def attack(case: Case[Any]) -> None:
            ask(case)

        attack()
    assert {*("/v1/completions", "/v1/chat/completions", "/v1/responses")} <= paths


@pytest.mark.parametrize("app", ["native"], indirect=True)
def test_vllms_benchmark_client_runs(app: str, tmp_path: Path) -> None:
    options = {
        "backend": "openai",
        "base-url": app,
        "endpoint": "/v1/completions",
        "model": TARGET,
        "tokenizer": str(model_path(TARGET)),
        "dataset-name": "random",
        "random-input-len": "24",
        "random-output-len": "16",
        "num-prompts": "8",
        "max-concurrency": "4",
        "result-dir": str(tmp_path),
        "result-filename": "bench.json",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    ran = subprocess.run(
        [sys.executable, "-c", VLLM_BENCH, *flags, "--ignore-eos", "--save-result"],
        env=os.environ | {"OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 16


TASK = """
task: choosing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
output_type: multiple_choice
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
LM_EVAL = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
url, tokenizer, folder, model = sys.argv[1:]
results = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=dict(
        model=model, base_url=f"{url}/v1/completions", tokenizer=tokenizer, num_concurrent=4
    ),
    batch_size=3,
    tasks=["choosing"],
    task_manager=TaskManager(include_path=folder, include_defaults=False),
    bootstrap_iters=0,
)
samples = sorted(results["samples"]["choosing"], key=lambda sample: sample["doc_id"])
answers = [sample["filtered_resps"] for sample in samples]
print("RESULT", json.dumps([results["results"]["choosing"], answers], default=str))
"""


def stock_likelihoods(rows: Sequence[dict[str, Any]]) -> list[list[tuple[float, bool]]]:
    """The log-likelihood of each choice, and whether greedy decoding gives it."""
    model = AutoModelForCausalLM.from_pretrained(model_path(TARGET), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    expected = []
    for row in rows:
        context = len(tokenizer(row["prompt"])["input_ids"])
        likelihoods = []
        for choice in row["choices"]:
            ids = torch.tensor(tokenizer(row["prompt"] + choice)["input_ids"])
            with torch.inference_mode():
                logprobs = model(ids[None]).logits[0].log_softmax(-1)[context - 1 : -1]
            own = logprobs.gather(-1, ids[context:, None])
            greedy = bool((logprobs.argmax(-1) == ids[context:]).all())
            likelihoods.append((float(own.sum()), greedy))
        expected.append(likelihoods)
    return expected


def test_lm_eval_reads_the_stock_models_loglikelihoods(app: str, tmp_path: Path) -> None:
    """Choices after the same context, token ids, `echo`: as hellaswag and mmlu ask for them."""
    rows: list[dict[str, Any]] = [
        {
            "prompt": f"<|user|>Count to {count}.<|end|><|assistant|>",
            "choices": ["1, 2, 3", "1\n2\n3\n", "A table:", "Once upon a time there"],
            "answer": 1,
        }
        for count in range(3, 8)
    ]
    data = tmp_path / "choosing.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "choosing.yaml").write_text(TASK.format(data=data))
    ran = subprocess.run(
        [sys.executable, "-c", LM_EVAL, app, str(model_path(TARGET)), str(tmp_path), TARGET],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            "HF_DATASETS_OFFLINE": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path),
            "OPENAI_API_KEY": KEY,
        },
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    scores, answers = json.loads(ran.stdout.partition("RESULT ")[2])
    expected = stock_likelihoods(rows)
    for answer, likelihoods in zip(answers, expected, strict=True):
        assert [float(value) for value, _ in answer] == pytest.approx(
            [value for value, _ in likelihoods], abs=1e-3
        )
        assert [str(greedy) for _, greedy in answer] == [str(greedy) for _, greedy in likelihoods]
    right = sum(
        max(of_row) == of_row[row["answer"]] for of_row, row in zip(expected, rows, strict=True)
    )
    assert scores["acc,none"] == pytest.approx(right / len(rows))

"""Scores a running application on GSM8K with lm-eval, with speculation and without, and compares.

`python -m benchmarks.real.lm_eval_gsm8k --data DIR [--url URL] [--model NAME] [--questions N]
[--clients N] [--json FILE]`, after `make serve`, with what `make test` installs.

lm-eval's own client (`local-chat-completions`) sends the first questions of `--data`, greedily, and
twice: as the application speculates, and with `speculation: off` in each body. The score is that of
its GSM8K task's flexible extraction, the last number of an answer. Names:
real/lm_eval/gsm8k/score (`reference`: without speculation), .../same_answers (share of questions
answered with the same token ids), .../tokens_per_round of a request (`reference`: without
speculation). Exit status 1 if an answer differs.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Record, parser, publish

_NAME = "gsm8k_rows"
_TASK: Mapping[str, Any] = {
    "task": _NAME,
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer.split('#### ')[-1]}}",
    "filter_list": [
        {
            "name": "flexible-extract",
            "filter": [
                {
                    "function": "regex",
                    "group_select": -1,
                    "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)",
                },
                {"function": "take_first"},
            ],
        }
    ],
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "regexes_to_ignore": [",", "\\$", "\\.$"],
        }
    ],
}


@dataclass
class TaskRun:
    """The result of one run of the task."""

    score: float = 0.0
    answers: list[str] = field(default_factory=list)
    """By question."""
    token_ids: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    """Of each answer."""
    rounds: int = 0


def main(arguments: Sequence[str] | None = None) -> None:
    own = parser(__doc__)
    own.add_argument("--url", default="http://127.0.0.1:8000")
    own.add_argument("--model", default="SmolLM2-135M-Instruct", help="its name in the API")
    own.add_argument("--data", type=Path, default=Path("../shared/data"))
    own.add_argument("--questions", type=int, default=30)
    own.add_argument("--clients", type=int, default=4)
    own.add_argument("--max-tokens", type=int, default=256)
    options = own.parse_args(arguments)
    rows = (options.data / "gsm8k_questions.jsonl").read_text().splitlines()[: options.questions]

    def score(**body: Any) -> TaskRun:
        body |= {"max_gen_toks": options.max_tokens}
        return _run(
            rows, f"{options.url}/v1/chat/completions", options.model, options.clients, body
        )

    speculated, plain = score(), score(speculation="off")
    same = [
        one == other and speculated.token_ids[one] == plain.token_ids[other]
        for one, other in zip(speculated.answers, plain.answers, strict=True)
    ]
    tokens = [
        sum(len(ids) for answers in run.token_ids.values() for ids in answers) / run.rounds
        for run in (speculated, plain)
    ]
    prefix = "real/lm_eval/gsm8k"
    publish(
        [
            Record(f"{prefix}/score", speculated.score, "of questions", plain.score),
            Record(f"{prefix}/same_answers", sum(same) / len(same), "of questions"),
            Record(f"{prefix}/tokens_per_round", tokens[0], "tokens", tokens[1]),
        ],
        options.json,
    )
    if not all(same):
        sys.exit("answers differ")


def _run(
    rows: Sequence[str], url: str, model: str, clients: int, body: Mapping[str, Any]
) -> TaskRun:
    import lm_eval  # only this needs it, and it takes seconds to import
    from lm_eval.models.openai_completions import LocalChatCompletion
    from lm_eval.tasks import TaskManager

    run = TaskRun()

    class RecordingClient(LocalChatCompletion):
        """Also records the token ids and rounds, which lm-eval does not read."""

        def parse_generations(self, outputs: Any, **kwargs: Any) -> list[str]:
            for choice in outputs["choices"]:
                of_text = run.token_ids.setdefault(choice["message"]["content"], [])
                of_text.append(tuple(choice["token_ids"]))
                run.rounds += choice["spindle"]["rounds"]
            texts: list[str] = super().parse_generations(outputs, **kwargs)
            return texts

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.jsonl")
        data.write_text("\n".join(rows))
        generation = {"until": [], "do_sample": False, "return_token_ids": True, **body}
        task = {
            **_TASK,
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": folder},
            "generation_kwargs": generation,
        }
        Path(folder, "task.yaml").write_text(json.dumps(task))
        results = lm_eval.simple_evaluate(
            model=RecordingClient(base_url=url, model=model, num_concurrent=clients),
            tasks=[_NAME],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            apply_chat_template=True,
            bootstrap_iters=0,
        )
    run.score = results["results"][_NAME]["exact_match,flexible-extract"]
    samples = sorted(results["samples"][_NAME], key=lambda sample: sample["doc_id"])
    run.answers = [sample["resps"][0][0] for sample in samples]
    return run


if __name__ == "__main__":
    main()

"""The official OpenAI client with Spindle's extra fields slo and speculation.

    .venv/bin/pip install openai
    .venv/bin/python examples/client_slo_and_drafter.py [--url URL] [--drafter suffix]

Sends the same question three times: served for an SLO, drafted for by one named drafter, and
without speculation. Prints each answer and how it was made (docs/api.md). A third field, priority,
is for the tenants that `priority_for` in the config names.
"""

import argparse
import os
from typing import Any

from openai import OpenAI


def ask(client: OpenAI, question: str, extra: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The answer, and Spindle's statistics of the choice."""
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        max_tokens=40,
        temperature=0,
        extra_body=extra,
    )
    choice = answer.choices[0]
    return choice.message.content or "", (choice.model_extra or {})["spindle"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--url", default="http://127.0.0.1:8000")
    arguments.add_argument("--drafter", default="suffix", help="a drafter's name in the config")
    arguments.add_argument("--question", default="What is gravity?")
    chosen = arguments.parse_args()
    client = OpenAI(base_url=f"{chosen.url}/v1", api_key=os.environ.get("SPINDLE_API_KEY", "none"))
    for title, extra in (
        ("for an SLO", {"slo": {"ttft_ms": 2000, "tpot_ms": 100}}),
        (f"drafted by {chosen.drafter}", {"speculation": {"drafter": chosen.drafter}}),
        ("plain", {"speculation": "off"}),
    ):
        text, statistics = ask(client, chosen.question, extra)
        drafted, accepted = statistics["drafted"], statistics["accepted"]
        print(f"{title}: {text!r}")
        print(f"  {statistics['rounds']} rounds, {accepted} of {drafted} draft tokens accepted")


if __name__ == "__main__":
    main()

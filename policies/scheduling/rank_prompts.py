"""Self-scheduling's prompts: the target itself orders requests by the length of its answers.

The three forms of Appendix A.4, generalised from maths problems to any request, and short enough
for a small model's context. There are two deviations. Instead of a bare list the prompts request
`[position]value` pairs, so that an answer can be parsed even if a value is missing or surplus; the
same mark ends each request in the prompt, which helps a small model to relate the two. And lengths
are requested as items times tokens per item, so that the model copies a number that the request
states instead of multiplying it, which models are bad at.
"""

from collections.abc import Callable, Sequence

Message = dict[str, str]

MAX_BATCH = 10  # a position is one digit, hence one token
REQUEST_CHARS = 200
_ELLIPSIS = " ... "


def prefill_only(requests: Sequence[str]) -> list[Message]:
    """Requests the position of the shortest request; one prefill gives every position's score."""
    system = (
        "CRITICAL FORMAT: Output ONLY a number, no extra text. "
        "You are an expert at predicting response lengths."
    )
    task = (
        f"TASK: From the {len(requests)} requests below, identify the SINGLE one with the "
        "shortest response.\nReturn ONLY its position ID (0-9)."
    )
    return _messages(system, task, requests)


def rank_only(requests: Sequence[str]) -> list[Message]:
    """Requests a rank per position, 1 for the shortest response; ranks may repeat."""
    system = (
        "CRITICAL FORMAT: Output ONLY between markers, no extra text. "
        "You are an expert in ranking requests by response length."
    )
    task = (
        f"TASK: Given {len(requests)} requests, assign each a rank: 1=shortest "
        f"{len(requests)}=longest. Ranks can repeat.\n"
        "OUTPUT FORMAT: <<[0]rank,[1]rank,...>>"
    )
    return _messages(system, task, requests)


def length_only(requests: Sequence[str]) -> list[Message]:
    """Requests a predicted token count per position, which is comparable across prompts.

    The prompt has no example and no other number, because a small model would copy its digits.
    """
    system = (
        "Output only comma-separated numbers, no extra text. "
        "You are an expert at predicting response token counts."
    )
    task = (
        "TASK: Predict the token count of each response, as items x tokens per item.\n"
        "OUTPUT FORMAT: [position]NxTTT,... for N items of TTT tokens each"
    )
    return _messages(system, task, requests)


FORMS: dict[str, Callable[[Sequence[str]], list[Message]]] = {
    "prefill_only": prefill_only,
    "rank_only": rank_only,
    "length_only": length_only,
}


def _messages(system: str, task: str, requests: Sequence[str]) -> list[Message]:
    lines = [request_line(position, request) for position, request in enumerate(requests)]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "\n".join([task, "Requests:", *lines])},
    ]


def request_line(position: int, request: str) -> str:
    """One request of a prompt, ended by the mark by which the answer refers to it."""
    return f"Position {position}: <{quoted(request)}> [{position}]"


def quoted(request: str, max_chars: int = REQUEST_CHARS) -> str:
    """A user's text on one line, without our delimiters, cut in the middle to `max_chars`.

    Both ends are kept, because instructions may be at either. Without angle brackets a text can
    neither end its own quotation nor contain a special token of the chat template.
    """
    line = " ".join(request.replace("<", "(").replace(">", ")").split())
    if len(line) <= max_chars:
        return line
    kept = max_chars - len(_ELLIPSIS)
    head = kept - kept // 2
    return line[:head] + _ELLIPSIS + line[len(line) - kept // 2 :]

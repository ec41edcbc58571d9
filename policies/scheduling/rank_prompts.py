"""Self-scheduling's prompts: the target model itself orders requests by the length of its answers.

The three forms of Appendix A.4, generalised from maths problems to any request, and short enough
for a small model's context. Two deviations. Where the paper asks for a bare list, we ask for
`[position]value` pairs, so that an answer can be read even when the model drops or adds one; the
same mark closes each request, where a small model can gather what the request says. And a length
is asked for as items times tokens per item: a number that the request states is copied and not
multiplied, which models are bad at.
"""

from collections.abc import Callable, Sequence

Message = dict[str, str]

MAX_BATCH = 10  # a position is one digit, hence one token
REQUEST_CHARS = 200
_ELLIPSIS = " ... "


def prefill_only(requests: Sequence[str]) -> list[Message]:
    """Ask for the position of the shortest request; one prefill gives every position's score."""
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
    """LaneBatch for a rank per position, 1 for the shortest response; ranks may repeat."""
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
    """LaneBatch for a predicted token count per position; counts compare across prompts, too.

    No example and no other number stands in the prompt: a small model would copy its digits.
    """
    system = (
        "Output only comma-separated numbers, no extra text. "
        "You are an expert at predicting response token counts."
    )
    task = (
        "TASK: Predict the token count of each response, as items x tokens per item.\n"
        "OUTPUT FORMAT: [position]NxTTT,... for N items of TTT tokens each"
    )
    return _messages(system, task, requests, at_least=1)


FORMS: dict[str, Callable[[Sequence[str]], list[Message]]] = {
    "prefill_only": prefill_only,
    "rank_only": rank_only,
    "length_only": length_only,
}


def _messages(system: str, task: str, requests: Sequence[str], at_least: int = 2) -> list[Message]:
    if not at_least <= len(requests) <= MAX_BATCH:
        raise ValueError(
            f"this ranking prompt takes {at_least} to {MAX_BATCH} requests, not {len(requests)}"
        )
    lines = [request_line(position, request) for position, request in enumerate(requests)]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "\n".join([task, "Requests:", *lines])},
    ]


def request_line(position: int, request: str) -> str:
    """One request of a prompt, closed by the mark under which the answer refers to it."""
    return f"Position {position}: <{quoted(request)}> [{position}]"


def quoted(request: str, max_chars: int = REQUEST_CHARS) -> str:
    """A user's text on one line, without our delimiters, cut in the middle to `max_chars`.

    Both ends are kept: instructions stand at either one. Without angle brackets a text can
    neither close its own quotation nor spell one of the chat template's special tokens.
    """
    line = " ".join(request.replace("<", "(").replace(">", ")").split())
    if len(line) <= max_chars:
        return line
    kept = max_chars - len(_ELLIPSIS)
    head = kept - kept // 2
    return line[:head] + _ELLIPSIS + line[len(line) - kept // 2 :]

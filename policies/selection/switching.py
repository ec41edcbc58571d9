"""The goodput of a lane for a request that would have to switch to it."""

from typing import TypeVar

from policies.request import RequestView
from policies.rows import Floats

Number = TypeVar("Number", float, Floats)


def tokens_left(request: RequestView, horizon: int) -> float:
    """Output tokens over which a switch can pay: the rest of the predicted length, or of
    `max_tokens` where there is no prediction, at most `horizon`."""
    length = request.predicted_len if request.predicted_len is not None else request.max_tokens
    return max(1.0, min(length - request.generated, horizon))


def goodput_after_switch(goodput: Number, switch_s: Number, tokens: Number) -> Number:
    """Tokens per second over the next `tokens`, the time of the switch included."""
    return goodput * tokens / (tokens + goodput * switch_s)

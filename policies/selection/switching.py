"""What a lane is worth to a request that would have to switch to it."""

from typing import TypeVar

from policies.request import RequestView
from policies.rows import Floats

Number = TypeVar("Number", float, Floats)


def tokens_left(request: RequestView, horizon: int) -> float:
    """Output tokens over which a switch can pay: what the request will still say, as predicted
    or as it may, at most `horizon`."""
    whole = request.predicted_len if request.predicted_len is not None else request.max_tokens
    return max(1.0, min(whole - request.generated, horizon))


def after_switch(goodput: Number, switch_s: Number, tokens: Number) -> Number:
    """Tokens per second over the next `tokens`, where the switch takes its time first."""
    return goodput * tokens / (tokens + goodput * switch_s)

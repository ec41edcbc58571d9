"""What a lane is worth to a request that would have to switch to it."""

from policies.request import RequestView


def tokens_left(request: RequestView, horizon: int) -> float:
    """Output tokens over which a switch can pay: what the request will still say, as predicted
    or as it may, at most `horizon`."""
    whole = request.predicted_len if request.predicted_len is not None else request.max_tokens
    return max(1.0, min(whole - request.generated, horizon))


def after_switch(goodput: float, switch_s: float, tokens: float) -> float:
    """Tokens per second over the next `tokens`, where the switch takes its time first."""
    return goodput * tokens / (tokens + goodput * switch_s)

"""Limits how many places one client holds at the replicas, so that none can take all of them.

A place is one running or waiting choice of a request. A client's share is reckoned over the
replicas that there are when it asks: with `limits` as by default and one replica there are 16 + 64
places, of which one client may hold three quarters, 60.
"""

from collections import Counter
from collections.abc import Callable

from cluster.config import AppConfig
from deployments.ingress.admission.clients import Client
from deployments.ingress.errors import ApiError


class Shares:
    def __init__(self, config: AppConfig, replicas: Callable[[], int]) -> None:
        """`replicas`: how many there are at present."""
        limits = config.limits
        self._places_per_replica = limits.max_batch + limits.max_waiting
        self._client_share = limits.client_share
        self._most_replicas = config.scaling.max_replicas
        self._replicas = replicas
        self._held: Counter[str] = Counter()

    @property
    def largest_request(self) -> int:
        """The most choices of one request that can ever be admitted."""
        return self._share(self._most_replicas)

    def take(self, client: Client, choices: int) -> "Held":
        """Takes one place per choice; raises ApiError 429 if the client would exceed its share."""
        if client.share_of is None:
            return Held(self, "", 0)
        share, held = self._share(self._replicas()), self._held[client.share_of]
        if held + choices > share:
            raise ApiError(
                429,
                f"one client may have {share} of all choices running or waiting at once; you have "
                f"{held}, and this request needs {choices}; try again later",
            )
        self._held[client.share_of] += choices
        return Held(self, client.share_of, choices)

    def held(self, client: Client) -> int:
        """The places that the client holds."""
        return 0 if client.share_of is None else self._held[client.share_of]

    def _share(self, replicas: int) -> int:
        return max(1, int(self._client_share * self._places_per_replica * max(1, replicas)))

    def give_back(self, client: str, choices: int) -> None:
        self._held[client] -= choices
        if not self._held[client]:
            del self._held[client]


class Held:
    """The places of one request, until they are released."""

    def __init__(self, shares: Shares, client: str, choices: int) -> None:
        self._shares = shares
        self._client = client
        self._choices = choices

    def release(self) -> None:
        """Does nothing the second time."""
        if self._choices:
            self._shares.give_back(self._client, self._choices)
            self._choices = 0

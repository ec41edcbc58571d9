"""The past outputs that lookups of all replicas draft from: the router keeps them for those that
lack some, bounded, each in its scope.

Every replica numbers its own outputs. A message says which numbers its sender has of the others,
and the answer which the router has of the sender. So a lost message is made good by the next one, a
doubled one changes nothing, and a new router is sent what the replicas still keep.
"""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple, TypedDict

from actors.router.router import MOST_REPLICAS
from engine.scopes import Holdings, Scope

PAGE_TOKENS = 16_384
"""The tokens of one message: some 64 kB, which Ray sends with the call. Larger ones would enter its
object store, which may write to disk."""
_TOKEN_BYTES = 4
_LEAST_TOKENS = 32
"""What an output counts for at least, as it takes memory beside its tokens."""


class Output(NamedTuple):
    replica: str
    """The one that has generated it."""
    number: int
    """From 1, ascending among the outputs of a replica."""
    scope: Scope
    tokens: bytes
    """As int32."""

    @property
    def size(self) -> int:
        return max(len(self.tokens) // _TOKEN_BYTES, _LEAST_TOKENS)


class Message(TypedDict):
    replica: str
    since: int
    """The highest number of its own that the router is taken to have; 0: `outputs` begin with its
    oldest."""
    outputs: list[Output]
    """Its own after that; a page of them."""
    have: dict[str, int]
    """The highest number that it has of each other replica."""


class Answer(TypedDict):
    have: int
    """The highest number that the router has of the sender."""
    outputs: list[Output]
    """Those of others that the sender lacks; a page of them."""


def page(outputs: Iterable[Output]) -> list[Output]:
    """The first ones, that fill one message."""
    first, size = [], 0
    for output in outputs:
        first.append(output)
        size += output.size
        if size >= PAGE_TOKENS:
            break
    return first


def is_full(outputs: Iterable[Output]) -> bool:
    """Whether there may be more than this page."""
    return sum(output.size for output in outputs) >= PAGE_TOKENS


class SharedOutputs:
    """At most `max_tokens` tokens. The tenant that holds most gives room, its oldest output
    first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = self._left = max_tokens
        self._holdings = Holdings()
        self._places = count()
        self._outputs: dict[str, dict[int, tuple[int, Output]]] = {}
        """By replica and number, ascending, each with its place in the order of arrival."""
        self._of_tenants: dict[str, dict[int, Output]] = {}
        """By tenant and place, a tenant's oldest first."""
        self._have: dict[str, int] = {}
        """The highest number of each replica, the longest silent replica first."""
        self.changes = 0
        """How many outputs have been added."""

    def exchange(self, message: Message) -> Answer:
        replica = message["replica"]
        if message["since"] <= self._have.get(replica, 0):  # else an earlier router had the others
            for output in message["outputs"]:
                self.add(output)
        lacking = self._lacking(replica, message["have"])
        return {"have": self._have.get(replica, 0), "outputs": page(lacking)}

    def add(self, output: Output) -> None:
        replica, size, tenant = output.replica, output.size, output.scope.tenant
        if output.number <= self._have.get(replica, 0):
            return
        self._have.pop(replica, None)  # so that it comes last
        self._have[replica] = output.number
        if len(self._have) > MOST_REPLICAS:
            self._forget(next(iter(self._have)))
        if size > self._max_tokens:
            return
        while self._left < size:
            oldest = self._of_tenants[self._holdings.gives_room(self._of_tenants)]
            self._drop(*next(iter(oldest.items())))
        place = next(self._places)
        self._left -= size
        self._holdings.add(tenant, size)
        self._outputs.setdefault(replica, {})[output.number] = place, output
        self._of_tenants.setdefault(tenant, {})[place] = output
        self.changes += 1

    def all(self) -> list[Output]:
        """In the order of arrival."""
        kept = [one for outputs in self._outputs.values() for one in outputs.values()]
        return [output for _, output in sorted(kept)]

    def _lacking(self, sender: str, have: dict[str, int]) -> list[Output]:
        found = []
        for replica, outputs in self._outputs.items():
            if replica == sender:
                continue
            known = have.get(replica, 0)
            for number, arrived in reversed(outputs.items()):
                if number <= known:
                    break
                found.append(arrived)
        return [output for _, output in sorted(found)]

    def _forget(self, replica: str) -> None:
        del self._have[replica]
        for place, output in list(self._outputs.get(replica, {}).values()):
            self._drop(place, output)

    def _drop(self, place: int, output: Output) -> None:
        replica, tenant = output.replica, output.scope.tenant
        del self._outputs[replica][output.number], self._of_tenants[tenant][place]
        if not self._outputs[replica]:
            del self._outputs[replica]
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
        self._left += output.size
        self._holdings.add(tenant, -output.size)

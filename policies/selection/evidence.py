"""Tokens and seconds seen of drafters: of each request, on top of everyone's, both fading."""

from dataclasses import dataclass

PLAIN = ""
"""Plain decoding, among the drafters."""
_FADED = 1e-6
"""So few slots of evidence are none."""


@dataclass(slots=True)
class Tally:
    tokens: float = 0.0
    seconds: float = 0.0
    slots: float = 0.0

    def add(self, tokens: float, seconds: float, slots: float = 1.0) -> None:
        self.tokens += tokens
        self.seconds += seconds
        self.slots += slots

    def fade(self, factor: float) -> None:
        self.tokens *= factor
        self.seconds *= factor
        self.slots *= factor

    def with_prior(self, prior: "Tally", slots: float) -> "Tally":
        """This evidence, and `slots` slots as `prior` has them on average."""
        weight = slots / prior.slots
        return Tally(
            self.tokens + weight * prior.tokens,
            self.seconds + weight * prior.seconds,
            self.slots + slots,
        )


_NOTHING = Tally()
_ANYTHING = Tally(1.0, 1.0, 1.0)
"""Before the first slot: whatever it is, the same for all."""


class Evidence:
    """A request's own slots weigh against `prior_slots` slots as everyone has had them under that
    drafter; everyone's weigh likewise against what the fleet of drafters does on average."""

    def __init__(self, prior_slots: float, own_decay: float, pool_decay: float) -> None:
        self._prior_slots = prior_slots
        self._own_decay = own_decay
        self._pool_decay = pool_decay
        self._own: dict[str, dict[str, Tally]] = {}
        self._pool: dict[str, Tally] = {}
        self._plain_bound = Tally()
        """Rounds that drafted, had they not: one token in what is left of the slot."""
        self._priors: dict[str, Tally] = {}
        """By drafter, as long as nothing new is seen."""

    def fade(self, request: str) -> None:
        """A slot of `request` has ended."""
        for tally in (*self._pool.values(), self._plain_bound):
            tally.fade(self._pool_decay)
        for tally in self._own.get(request, {}).values():
            tally.fade(self._own_decay)
        self._priors.clear()

    def add(self, request: str, drafter: str, tokens: float, seconds: float) -> None:
        self._own.setdefault(request, {}).setdefault(drafter, Tally()).add(tokens, seconds)
        self._pool.setdefault(drafter, Tally()).add(tokens, seconds)
        self._priors.clear()

    def add_plain(self, tokens: float, seconds: float) -> None:
        """Plain decoding is the same for every request."""
        self._pool.setdefault(PLAIN, Tally()).add(tokens, seconds)
        self._priors.clear()

    def bound_plain(self, seconds: float) -> None:
        """What a round took without its drafting: plain decoding would have taken no longer."""
        self._plain_bound.add(1.0, seconds)
        self._priors.clear()

    def goodput(self, request: str, drafter: str) -> float:
        """Tokens per second."""
        prior = self._priors.get(drafter)
        if prior is None:
            prior = self._priors[drafter] = self._prior(drafter)
        own = self._own.get(request, {}).get(drafter, _NOTHING)
        mean = own.with_prior(prior, self._prior_slots)
        return mean.tokens / mean.seconds

    def slots(self, drafter: str) -> float:
        """Everyone's."""
        return self._pool.get(drafter, _NOTHING).slots

    def own_slots(self, request: str, drafter: str) -> float:
        return self._own.get(request, {}).get(drafter, _NOTHING).slots

    def forget(self, request: str) -> None:
        self._own.pop(request, None)

    def _prior(self, drafter: str) -> Tally:
        bounded = drafter == PLAIN and self._plain_bound.slots > _FADED
        above = self._plain_bound if bounded else self._fleet()
        return self._pool.get(drafter, _NOTHING).with_prior(above, self._prior_slots)

    def _fleet(self) -> Tally:
        fleet = Tally()
        for drafter, tally in self._pool.items():
            if drafter != PLAIN:
                fleet.add(tally.tokens, tally.seconds, tally.slots)
        return fleet if fleet.slots > _FADED else _ANYTHING

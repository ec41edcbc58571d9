"""The kinds of drafters. An entry here is all that the config and the hosts need to know of a kind,
and all that suites, benchmarks and `cluster.plan` need to know of a lookup."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True, slots=True)
class DrafterKind:
    about: str
    """What it proposes; docs/config.md prints it after the kind's name."""
    made_by: str
    """What makes one, as `module:name`, imported only where the drafter runs. It is called as
    `make_lookup` (actors/hosts/direct.py) or `load_drafter` (actors/hosts/loading.py) calls it."""
    lookup: bool
    """Drafts without a model in far less than a millisecond, but for the first order of a long
    prompt. So it runs in the coordinator's event loop, for every request besides the selected
    lane, unless the speculation policy leaves it out."""
    options: tuple[str, ...] = ()
    """Fields of DrafterConfig that other kinds refuse; keyword arguments of what makes one."""
    copies_target: bool = False
    """Is made of the target's weights: it has no `model`, and its checkpoint is the target's."""
    reads_features: bool = False
    """Reads the target's hidden states, and so needs a verifier that hands them out. Its checkpoint
    may leave out weights that the target's has: what makes it is also given that checkpoint, as
    `target`."""

    def maker(self) -> Callable[..., Any]:
        make: Callable[..., Any] = resolve_name(self.made_by)
        return make


DRAFTER_KINDS: Mapping[str, DrafterKind] = {
    "model": DrafterKind(
        "a small language model",
        made_by="engine.drafters.loading:load_model_drafter",
        lookup=False,
    ),
    "eagle3": DrafterKind(
        "an EAGLE-3 head in the format of speculators, which reads the target's hidden states",
        made_by="engine.drafters.eagle3:load_eagle3",
        lookup=False,
        reads_features=True,
    ),
    "quantized": DrafterKind(
        "the target itself with its weights rounded to 4 or 8 bits",
        made_by="engine.drafters.loading:load_quantized",
        lookup=False,
        options=("quantize",),
        copies_target=True,
    ),
    "ngram": DrafterKind(
        "a lookup of what followed the last tokens earlier in the same request, at almost no cost",
        made_by="engine.drafters.lookup:NgramDrafter",
        lookup=True,
    ),
    "suffix": DrafterKind(
        "the same in past outputs as well",
        made_by="engine.drafters.lookup:SuffixDrafter",
        lookup=True,
        options=("past_tokens",),
    ),
}
LOOKUPS = tuple(name for name, kind in DRAFTER_KINDS.items() if kind.lookup)
OPTIONS = frozenset(option for kind in DRAFTER_KINDS.values() for option in kind.options)
"""All options that belong to some kinds only."""


def drafter_kind(name: str) -> DrafterKind:
    if name not in DRAFTER_KINDS:
        raise ValueError(f"there is no kind {name!r}; choose one of {', '.join(DRAFTER_KINDS)}")
    return DRAFTER_KINDS[name]


def with_option(option: str) -> str:
    """The kinds that have this option, for error messages."""
    return " or ".join(name for name, kind in DRAFTER_KINDS.items() if option in kind.options)

"""Sizes and training schedules of the models that `python -m lab.zoo train` makes."""

from dataclasses import dataclass

from transformers import LlamaConfig

from benchmarks.prompts.tasks import STATED_LENGTH_KINDS
from cluster.built_in_models import TARGET
from lab.zoo.batches import NUMBERS_MIX, RANKING_MIX, TARGET_MIX, Mix
from lab.zoo.chat import CONTEXT, VOCAB_SIZE


@dataclass(frozen=True)
class Recipe:
    """One model: its shape, its training data and the number of steps."""

    name: str
    hidden: int
    layers: int
    heads: int
    steps: int
    mix: Mix
    later: tuple[tuple[int, Mix], ...] = ()
    """Later mixes, each with the step from which it is used."""
    lull: int | None = None
    """A step at which the learning rates reach their minimum and then rise again."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The steps at which the learning rates reach their minimum."""
        return (self.steps,) if self.lull is None else (self.lull, self.steps)

    def mix_at(self, step: int) -> Mix:
        begun = [mix for first, mix in self.later if step >= first]
        return begun[-1] if begun else self.mix

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads // 2,
            head_dim=self.hidden // self.heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=4,
            pad_token_id=0,
        )


# With a head dimension of 64 and two KV heads, the target can be inflated and run on two
# tensor-parallel ranks.
TARGET_RECIPE = Recipe(
    TARGET,
    hidden=256,
    layers=4,
    heads=4,
    steps=10_500,
    mix=TARGET_MIX,
    later=((5000, NUMBERS_MIX), (8000, RANKING_MIX)),
    lull=8000,
)

_GENERAL = TARGET_MIX
_CODE = Mix(tasks=0.5, ranking=0, code=0.5, prose=0, kinds=("code", "function"))
_PROSE = Mix(tasks=0.5, ranking=0, code=0, prose=0.5, kinds=("docs",))
_TASKS = Mix(
    tasks=0.75,
    ranking=0.25,
    code=0,
    prose=0,
    kinds=(*STATED_LENGTH_KINDS, "arithmetic", "copy", "edit"),
)
DRAFTER_RECIPES = (
    Recipe("tiny", hidden=64, layers=2, heads=2, steps=420, mix=_GENERAL),
    Recipe("small", hidden=192, layers=3, heads=6, steps=360, mix=_GENERAL),
    Recipe("code", hidden=128, layers=2, heads=4, steps=280, mix=_CODE),
    Recipe("prose", hidden=128, layers=2, heads=4, steps=280, mix=_PROSE),
    Recipe("tasks", hidden=128, layers=2, heads=4, steps=280, mix=_TASKS),
)

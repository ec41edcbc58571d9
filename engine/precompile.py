"""`python -m engine.precompile` compiles the loops that need no model, or finds that they are
compiled: those of policies, lookups and sampling."""

import torch

from engine.drafters.lookup import NgramDrafter, SuffixDrafter
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row, choose
from policies import precompile

if __name__ == "__main__":
    precompile.warm_up()
    for make in (NgramDrafter, SuffixDrafter):
        make(make.__name__)
    choose(torch.zeros(1, 64), [Row(SamplingParams(temperature=1.0), 0, 0, 0, [])])

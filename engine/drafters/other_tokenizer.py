"""Lets a model with a tokenizer of its own draft for a target: its embeddings become those of the
target's tokens, and its output matrix keeps the rows of the tokens that both share. So it reads and
proposes the target's ids, one row for each, and nothing else knows of its tokenizer.
"""

from itertools import accumulate

import torch
from torch import nn
from torch.nn.functional import embedding_bag
from transformers import PreTrainedModel

from cluster.vocabularies import SharedTokens
from engine.sampling.vocabulary import ReducedVocabulary


@torch.no_grad()
def read_target_ids(
    model: PreTrainedModel, shared: SharedTokens, target_size: int
) -> ReducedVocabulary:
    """Changes the model in place. The embedding of a token that it does not share is the mean of
    those that spell it (Gee et al., "Fast Vocabulary Transfer for Language Model Compression",
    2022). Returns what its logits are of."""
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    device, dtype = embeddings.weight.device, embeddings.weight.dtype
    own = torch.tensor([*shared.ids.values()], device=device)
    kept = nn.Linear(output.in_features, len(own), bias=output.bias is not None, device="meta")
    kept.weight = nn.Parameter(output.weight[own])
    if output.bias is not None:
        kept.bias = nn.Parameter(output.bias[own])

    spelled = shared.spelled(target_size)
    pieces = torch.tensor([piece for token in spelled for piece in token], device=device)
    begins = torch.tensor([0, *accumulate(map(len, spelled[:-1]))], device=device)
    means = embedding_bag(pieces, embeddings.weight.float(), begins, mode="mean")
    embeddings.weight = nn.Parameter(means.to(dtype))
    embeddings.num_embeddings, embeddings.padding_idx = target_size, None

    text_config = model.config.get_text_config(decoder=True)
    text_config.tie_word_embeddings = False
    text_config.vocab_size = target_size
    model.set_output_embeddings(kept)
    return ReducedVocabulary(torch.tensor([*shared.ids], device=device), target_size)

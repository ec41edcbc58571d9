"""The texts of a checkpoint's tokens, as xgrammar needs them."""

from pathlib import Path

import xgrammar
from transformers import PreTrainedTokenizerFast

from engine.tokenizer import load_tokenizer


def token_texts(checkpoint: Path, vocab_size: int) -> xgrammar.TokenizerInfo:
    """`vocab_size`: the model's, which may be larger than the tokenizer's."""
    tokenizer = load_tokenizer(checkpoint)
    # Stop tokens are those of the request, which its matcher sees to; xgrammar is given any.
    detected = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=[0]
    )
    # Special tokens are left out of the text that clients receive. xgrammar would take them for
    # the text of their names, and allow them within strings; an empty text is never allowed.
    special = {*tokenizer.all_special_ids, *_added_specials(tokenizer)}
    texts = [b"" if token in special else text for token, text in enumerate(detected.decoded_vocab)]
    return xgrammar.TokenizerInfo(
        texts,
        xgrammar.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=[],
        add_prefix_space=detected.add_prefix_space,
    )


def _added_specials(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [token for token, added in tokenizer.added_tokens_decoder.items() if added.special]

"""Whether a stream equals the undisturbed one of the same request, or left it at a near-tie.

In fp32 sums in another order, as another batch or another number of ranks has them, may exchange
two tokens of almost equal score. The scores are computed here from their definition, from stock
Hugging Face logits and the shared noise alone, so that an error in the engine is not excused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.serving.streams import ReceivedStream
from cluster.built_in_models import TARGET, model_path
from engine.sampling.noise import gumbel

NEAR_TIE = 1e-4
"""The largest difference of the two best scores at which streams may part."""


class StreamIdentity:
    """Compares streams of the zoo's target; request bodies may have a temperature and a frequency
    penalty."""

    def __init__(self) -> None:
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            model_path(TARGET), dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def __call__(
        self, body: Mapping[str, Any], undisturbed: ReceivedStream, stream: ReceivedStream
    ) -> bool | None:
        """None: incomplete or different; else whether a near-tie had to be excused."""
        if not stream.complete:
            print(f"  seed {body['seed']}: incomplete: {stream.error}", flush=True)
            return None
        if stream.token_ids == undisturbed.token_ids and stream.text == undisturbed.text:
            return False
        pairs = zip(undisturbed.token_ids, stream.token_ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and self._near_tie(body, undisturbed.token_ids[:first]):
            return True
        print(f"  seed {body['seed']}: differs at output token {first}", flush=True)
        return None

    def scores(self, body: Mapping[str, Any], output: Sequence[int]) -> NDArray[np.float64]:
        """log p + g of each token that might follow this output, up to a constant."""
        tokens = [*body["prompt"], *output]
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        scores: NDArray[np.float64] = logits.double().numpy()
        for token in set(output):
            scores[token] -= body["frequency_penalty"] * output.count(token)
        if body["temperature"]:
            noise = gumbel(int(body["seed"]), len(tokens), np.arange(len(scores)))
            scores = scores / body["temperature"] + noise
        return scores

    def _near_tie(self, body: Mapping[str, Any], output: Sequence[int]) -> bool:
        second, best = np.sort(self.scores(body, output))[-2:]
        return bool(best - second < NEAR_TIE)

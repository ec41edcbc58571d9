"""Whether two streams of one request are the same, in grade F: near-ties of the reference apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.serving.streams import Said
from cluster.zoo import TARGET, model_path
from engine.sampling.params import SamplingParams
from tests import reference
from tests.identity import NEAR_TIE


class Judge:
    """Grade F: equal to the undisturbed stream, or apart first at a near-tie of the reference."""

    def __init__(self) -> None:
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            model_path(TARGET), dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def __call__(self, body: Mapping[str, Any], calm: Said, said: Said) -> bool | None:
        """None: lost or different; else whether it had to be excused."""
        if not said.complete:
            print(f"  seed {body['seed']}: incomplete: {said.error}", flush=True)
            return None
        if said.token_ids == calm.token_ids and said.text == calm.text:
            return False
        pairs = zip(calm.token_ids, said.token_ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and self._near_tie(body, calm.token_ids[:first]):
            return True
        print(f"  seed {body['seed']}: differs at output token {first}", flush=True)
        return None

    def _near_tie(self, body: Mapping[str, Any], output: Sequence[int]) -> bool:
        params = SamplingParams(
            temperature=body["temperature"],
            frequency_penalty=body["frequency_penalty"],
            max_tokens=body["max_tokens"],
        )
        tokens = [*body["prompt"], *output]
        logits = reference.forward(self._model, tokens)[-1]
        scores = reference.perturbed(logits, tokens, len(body["prompt"]), params, int(body["seed"]))
        second, best = np.sort(scores)[-2:]
        return bool(best - second < NEAR_TIE)

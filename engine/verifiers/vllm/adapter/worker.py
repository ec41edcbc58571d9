"""Changes to vLLM's workers: an empty proposer, and our sampler."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine.verifiers.vllm.adapter.support import require_attributes
from engine.verifiers.vllm.sampling import (
    SAMPLER_INPUT,
    ChosenTokens,
    SamplerInput,
    StepRequest,
    choose_tokens,
)

AllowedTokens = Mapping[str, Sequence[NDArray[np.int32] | None]]
NO_TOKEN = -1
"""vLLM's placeholder after a request's last token."""
NO_LIMIT = 1 << 62


class NoDrafts:
    """A proposer for vLLM that never proposes: drafts come with the turns."""

    def __init__(self, _config: VllmConfig) -> None: ...

    def load_model(self, _model: torch.nn.Module) -> None: ...

    def propose(
        self, sampled: Sequence[Sequence[int]], *_: object, **__: object
    ) -> list[list[int]]:
        return [[] for _ in sampled]


class WorkerExtension:
    """Methods that vLLM adds to the worker class of any platform."""

    model_runner: GPUModelRunner

    def replace_sampler(self) -> None:
        runner = self.model_runner
        require_attributes(
            runner,
            "_sample",
            "sampler.gather_logprobs",
            "requests",
            "input_batch.req_ids",
            "input_batch.num_tokens_no_spec",
            "discard_request_mask.np",
            "effective_drafter_max_model_len",
        )
        runner._sample = partial(sample, runner)
        runner._spindle_allowed = {}
        runner.sampler.gather_logprobs = _gather_logprobs
        # Near the end of the context vLLM disables the proposer on a path that needs CUDA, which
        # an empty proposer does not need.
        runner.effective_drafter_max_model_len = NO_LIMIT

    def set_allowed(self, masks: AllowedTokens) -> None:
        """Sets Turn.allowed of the next step's requests, by their names in vLLM."""
        self.model_runner._spindle_allowed = masks


def sample(
    runner: GPUModelRunner, logits: torch.Tensor, drafts: SpecDecodeMetadata | None
) -> SamplerOutput:
    """Replaces GPUModelRunner._sample: a row for each request and each token of its draft."""
    names = runner.input_batch.req_ids
    counts = [0] * len(names) if drafts is None else drafts.num_draft_tokens
    tokens = [] if drafts is None else drafts.draft_token_ids.tolist()
    unfinished = runner.discard_request_mask.np[: len(names)].tolist()
    requests, indices = [], []
    allowed: AllowedTokens = runner._spindle_allowed
    first_row = first_draft = 0
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        if not unfinished[index]:
            request = runner.requests[name]
            inputs: SamplerInput = request.sampling_params.extra_args[SAMPLER_INPUT]
            history: list[int] = []
            if inputs.start.params.has_penalties:
                history = [*request.prompt_token_ids, *request.output_token_ids]
            draft = tokens[first_draft : first_draft + count]
            position = int(runner.input_batch.num_tokens_no_spec[index])
            requests.append(
                StepRequest(name, inputs, first_row, position, history, draft, allowed.get(name))
            )
            indices.append(index)
        first_row += count + 1
        first_draft += count
    chosen = choose_tokens(logits, requests)
    width = max(counts, default=0) + 1
    rows = [[NO_TOKEN] * width for _ in names]
    for index, one in zip(indices, chosen, strict=True):
        rows[index][: len(one.tokens)] = one.tokens
    sampled = torch.tensor(rows, dtype=torch.int32)  # cheaper than one tensor per row
    return SamplerOutput(sampled.to(logits.device), _packed(chosen, indices, sampled.shape))


def _gather_logprobs(
    logprobs: torch.Tensor, top_n: int, token_ids: torch.Tensor
) -> LogprobsTensors:
    """Replaces Sampler.gather_logprobs, which the runner calls for prompts and whose first call
    would compile a function for seconds, to count ranks."""
    top = logprobs.topk(top_n, -1)
    tokens = token_ids[:, None]
    ids = torch.cat([tokens, top.indices], -1)
    own = logprobs.gather(-1, tokens)
    ranks = (logprobs >= own).sum(-1, dtype=torch.int32)
    return LogprobsTensors(ids.int(), torch.cat([own, top.values], -1), ranks)


def _packed(
    chosen: Sequence[ChosenTokens], indices: Sequence[int], shape: Sequence[int]
) -> LogprobsTensors | None:
    """In vLLM's format: for each entry of the sampled tokens the token, then its top tokens."""
    columns = max((1 + len(row.top) for one in chosen for row in one.reported or ()), default=0)
    if not columns:
        return None
    ids = torch.zeros((*shape, columns), dtype=torch.int32)
    values = torch.zeros((*shape, columns), dtype=torch.float32)
    for index, one in zip(indices, chosen, strict=True):
        for step, (token, row) in enumerate(zip(one.tokens, one.reported or (), strict=False)):
            top = [(token, row.logprob), *row.top]
            ids[index, step, : len(top)] = torch.tensor([token_id for token_id, _ in top])
            values[index, step, : len(top)] = torch.tensor([value for _, value in top])
    ranks = torch.zeros(ids.shape[:2].numel(), dtype=torch.int32)
    return LogprobsTensors(ids.flatten(0, 1), values.flatten(0, 1), ranks)

"""What runs in vLLM's workers: no proposer, our sampler, and on a CPU with AMX 36 rows where there
are 17 to 32."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine.cpu.row_counts import has_dear_counts, without_dear_counts
from engine.verifiers.vllm.adapter.support import demand
from engine.verifiers.vllm.sampling import Asked, Said, Wish, decide

WISH = "spindle"
"""Our key in a request's `extra_args`."""
NO_TOKEN = -1
"""vLLM's own placeholder behind the last token that a request was given."""
NO_LIMIT = 1 << 62


class NoDrafts:
    """vLLM's proposer here: it has nothing to propose."""

    def __init__(self, _config: VllmConfig) -> None: ...

    def load_model(self, _model: torch.nn.Module) -> None: ...

    def propose(
        self, sampled: Sequence[Sequence[int]], *_: object, **__: object
    ) -> list[list[int]]:
        return [[] for _ in sampled]


class WorkerExtension:
    """Mixed into vLLM's worker, whichever the platform has."""

    model_runner: GPUModelRunner

    def replace_sampler(self) -> None:
        runner = self.model_runner
        demand(
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
        runner.sampler.gather_logprobs = _gather_logprobs
        # Near the end of the context vLLM would tell the proposer to stand back, on a path that
        # needs CUDA; ours never stands in the way.
        runner.effective_drafter_max_model_len = NO_LIMIT

    def avoid_dear_row_counts(self) -> None:
        """Rows are added where vLLM adds them for CUDA graphs, which a CPU has none of."""
        runner = self.model_runner
        demand(runner, "cudagraph_dispatcher.dispatch", "max_num_tokens", "dtype", "device")
        if not has_dear_counts(runner.device, runner.dtype):
            return
        dispatch = runner.cudagraph_dispatcher.dispatch

        def dispatch_more(
            num_tokens: int, *arguments: Any, **named: Any
        ) -> tuple[CUDAGraphMode, BatchDescriptor]:
            more = min(without_dear_counts(num_tokens), runner.max_num_tokens)
            mode, batch = dispatch(num_tokens, *arguments, **named)
            return mode, replace(batch, num_tokens=max(more, batch.num_tokens))

        runner.cudagraph_dispatcher.dispatch = dispatch_more


def sample(
    runner: GPUModelRunner, logits: torch.Tensor, drafts: SpecDecodeMetadata | None
) -> SamplerOutput:
    """In place of GPUModelRunner._sample: a row for each request and each token of its draft."""
    names = runner.input_batch.req_ids
    counts = [0] * len(names) if drafts is None else drafts.num_draft_tokens
    tokens = [] if drafts is None else drafts.draft_token_ids.tolist()
    unfinished = runner.discard_request_mask.np[: len(names)].tolist()
    asked, places = [], []
    first_row = first_draft = 0
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        if not unfinished[index]:
            request = runner.requests[name]
            wish: Wish = request.sampling_params.extra_args[WISH]
            history: list[int] = []
            if wish.start.params.has_penalties:
                history = [*request.prompt_token_ids, *request.output_token_ids]
            draft = tokens[first_draft : first_draft + count]
            position = int(runner.input_batch.num_tokens_no_spec[index])
            asked.append(Asked(name, wish, first_row, position, history, draft))
            places.append(index)
        first_row += count + 1
        first_draft += count
    said = decide(logits, asked)
    width = max(counts, default=0) + 1
    rows = [[NO_TOKEN] * width for _ in names]
    for place, one in zip(places, said, strict=True):
        rows[place][: len(one.tokens)] = one.tokens
    sampled = torch.tensor(rows, dtype=torch.int32)  # one tensor: a row of its own each costs more
    return SamplerOutput(sampled.to(logits.device), _packed(said, places, sampled.shape))


def _gather_logprobs(
    logprobs: torch.Tensor, top_n: int, token_ids: torch.Tensor
) -> LogprobsTensors:
    """In place of Sampler.gather_logprobs, which the runner calls for prompts: that one counts
    ranks, too, with a function that is compiled for seconds while the first such request waits."""
    top = logprobs.topk(top_n, -1)
    tokens = token_ids[:, None]
    ids = torch.cat([tokens, top.indices], -1)
    values = torch.cat([logprobs.gather(-1, tokens), top.values], -1)
    return LogprobsTensors(ids.int(), values, torch.zeros_like(token_ids, dtype=torch.int32))


def _packed(
    said: Sequence[Said], places: Sequence[int], shape: Sequence[int]
) -> LogprobsTensors | None:
    """In vLLM's own form, a row for each place of the sampled tokens: the token, then its top."""
    columns = max((1 + len(row.top) for one in said for row in one.reported or ()), default=0)
    if not columns:
        return None
    ids = torch.zeros((*shape, columns), dtype=torch.int32)
    values = torch.zeros((*shape, columns), dtype=torch.float32)
    for place, one in zip(places, said, strict=True):
        for step, (token, row) in enumerate(zip(one.tokens, one.reported or (), strict=False)):
            top = [(token, row.logprob), *row.top]
            ids[place, step, : len(top)] = torch.tensor([one_id for one_id, _ in top])
            values[place, step, : len(top)] = torch.tensor([value for _, value in top])
    ranks = torch.zeros(ids.shape[:2].numel(), dtype=torch.int32)
    return LogprobsTensors(ids.flatten(0, 1), values.flatten(0, 1), ranks)

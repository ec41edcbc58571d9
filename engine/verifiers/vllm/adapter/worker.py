"""Changes to vLLM's workers: an empty proposer, our sampler, and features for heads."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput, SamplerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

from engine.hidden_states import rows_of
from engine.protocol import Features
from engine.verifiers.vllm.adapter.support import require_attributes, unsupported
from engine.verifiers.vllm.loading import FEATURE_LAYERS
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

    def adapt(self) -> None:
        """Called after the weights are loaded, and before anything is compiled."""
        runner = self.model_runner
        require_attributes(
            runner,
            "sampler.gather_logprobs",
            "requests",
            "input_batch.req_ids",
            "input_batch.num_tokens_no_spec",
            "input_batch.num_computed_tokens_cpu",
            "discard_request_mask.np",
            "effective_drafter_max_model_len",
            "execute_model_state",
            "use_aux_hidden_state_outputs",
        )
        runner.sample_tokens = partial(sample_tokens, runner, runner.sample_tokens)
        runner.sampler.gather_logprobs = _gather_logprobs
        # Near the end of the context vLLM disables the proposer on a path that needs CUDA, which
        # an empty proposer does not need.
        runner.effective_drafter_max_model_len = NO_LIMIT
        if runner.vllm_config.lora_config:
            require_attributes(runner, "num_prompt_logprobs", "_set_active_loras")
            original = runner._get_prompt_logprobs_dict
            runner._get_prompt_logprobs_dict = partial(prompt_logprobs, runner, original)
        layers = runner.vllm_config.additional_config.get(FEATURE_LAYERS)
        if layers:
            model = runner.get_model()
            if not supports_eagle3(model):
                raise unsupported(f"{type(model).__name__} hands out no hidden states for heads")
            model.set_aux_hidden_state_layers(tuple(layers))
            runner.use_aux_hidden_state_outputs = True


def sample_tokens(
    runner: GPUModelRunner, original: Callable[..., ModelRunnerOutput], *arguments: object
) -> ModelRunnerOutput:
    """Replaces GPUModelRunner.sample_tokens: our sampler, and the features that the step's turns
    want as an attribute of the output."""
    state = runner.execute_model_state
    runner._sample = partial(sample, runner, state.scheduler_output.spindle_allowed)
    output = original(*arguments)
    output.spindle_features = _features(runner, state, output.sampled_token_ids)
    return output


PromptLogprobs = dict[str, LogprobsTensors | None]


def prompt_logprobs(
    runner: GPUModelRunner,
    original: Callable[[torch.Tensor, Mapping[str, int]], PromptLogprobs],
    states: torch.Tensor,
    scheduled: Mapping[str, int],
) -> PromptLogprobs:
    """Replaces GPUModelRunner._get_prompt_logprobs_dict, which takes the adapters of the batch's
    sampled rows for the rows of a prompt: here each prompt has its own adapter."""
    asked, found = runner.num_prompt_logprobs, PromptLogprobs()
    for name, top_n in [*asked.items()]:
        if name not in scheduled:
            continue
        request = runner.requests[name]
        left = len(request.prompt_token_ids) - request.num_computed_tokens - 1
        adapter = request.lora_request
        rows = (adapter.lora_int_id if adapter else 0,) * min(scheduled[name], left)
        if rows:
            runner._set_active_loras(rows, rows, {adapter} if adapter else set())
        runner.num_prompt_logprobs = {name: top_n}
        found |= original(states, scheduled)
        if not runner.num_prompt_logprobs:
            del asked[name]
    runner.num_prompt_logprobs = asked
    return found


def _features(
    runner: GPUModelRunner, state: ExecuteModelState, sampled: Sequence[Sequence[int]]
) -> dict[str, Features]:
    """Those of the committed tokens that the step has computed and of accepted drafts."""
    scheduled, wanted = state.scheduler_output, state.scheduler_output.spindle_features
    if not wanted or state.aux_hidden_states is None:
        return {}
    # In ascending order, without repeats: as vLLM hands them out.
    layers = runner.vllm_config.additional_config[FEATURE_LAYERS]
    states = dict(zip(layers, state.aux_hidden_states, strict=True))
    features = {}
    row = 0
    for index, name in enumerate(runner.input_batch.req_ids):
        rows = scheduled.num_scheduled_tokens[name]
        if name in wanted:
            drafted = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            kept = rows - drafted + max(len(sampled[index]) - 1, 0)
            computed = int(runner.input_batch.num_computed_tokens_cpu[index])
            first = max(computed, wanted[name].first)
            indices = range(row + first - computed, row + kept)
            parts = [states[layer] for layer in wanted[name].layers]
            features[name] = Features(first, rows_of(parts, indices))
        row += rows
    return features


def sample(
    runner: GPUModelRunner,
    allowed: AllowedTokens,
    logits: torch.Tensor,
    drafts: SpecDecodeMetadata | None,
) -> SamplerOutput:
    """Replaces GPUModelRunner._sample: a row for each request and each token of its draft."""
    names = runner.input_batch.req_ids
    counts = [0] * len(names) if drafts is None else drafts.num_draft_tokens
    tokens = [] if drafts is None else drafts.draft_token_ids.tolist()
    unfinished = runner.discard_request_mask.np[: len(names)].tolist()
    requests, indices = [], []
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

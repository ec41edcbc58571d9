"""Checks that involve several fields. Each error names the field and a way to fix it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.adapters import misfit
from cluster.checkpoint_files import (
    TOKENIZERS,
    absent_files,
    has_tokenizer,
    quantization,
    stop_token_ids,
)
from cluster.checkpoints import (
    eagle3_shape,
    is_head,
)
from cluster.config.backends import BACKENDS, able
from cluster.config.drafter_kinds import drafter_kind, with_option
from cluster.config.keys import check_tenants
from cluster.config.models import DrafterConfig, TargetConfig
from cluster.config.serving import PoliciesConfig
from cluster.quantized_targets import cpu_problem, needs_bfloat16
from cluster.sources import check_weights, is_on_hub
from cluster.vocabularies import has_same_ids, shared_tokens


def check_drafters(drafters: Sequence[DrafterConfig], policies: PoliciesConfig) -> None:
    names = [drafter.name for drafter in drafters]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"drafters: two of them are named {name!r}; rename one")
    chosen = policies.selection.options.get("drafter")
    models = [drafter.name for drafter in drafters if not drafter.is_lookup]
    if chosen in names and chosen not in models:
        raise ValueError(
            f"policies.selection.options.drafter: {chosen} is a lookup, which drafts for every "
            "request in any case; name a model"
        )
    if chosen is not None and chosen not in models:
        there = f"there are {', '.join(models)}" if models else "there are no drafters"
        raise ValueError(f"policies.selection.options.drafter: no {chosen!r}; {there}")


def check_folder(past_outputs_folder: str | None, past_tokens: int) -> None:
    if past_outputs_folder is None:
        return
    _check_absolute("past_outputs_folder", past_outputs_folder)
    if not past_tokens:
        raise ValueError(
            "past_outputs_folder: no drafter keeps past outputs; add one of kind "
            f"{with_option('past_tokens')} with past_tokens above 0, or leave the folder out"
        )


def _check_absolute(field: str, folder: str) -> None:
    if not Path(folder).is_absolute():
        raise ValueError(
            f"{field}: {folder!r} depends on where a process runs; give an absolute path"
        )


def check_inline_gpus(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    inline = [target.gpus] if target.placement == "inline" else []
    inline += [drafter.gpus for drafter in drafters if drafter.placement == "inline"]
    total = sum(inline)
    if total > 1 and total != int(total):
        raise ValueError(
            f"drafters.gpus: the inline models ask for {total:g} GPUs together, which Ray gives "
            "to no process; make it a whole number, or place some of them as actors"
        )


def check_formats(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    """Checks that the target's text can be tokenized, and that all weights are in a format that
    their engine reads."""
    folder = target.header_path()
    if not has_tokenizer(folder):
        raise ValueError(
            f"target.model: {target.model} has no tokenizer: none of {', '.join(TOKENIZERS)} is in "
            f"{folder}; copy the files of the model that it was made from"
        )
    method = quantization(folder)
    if method is not None and not BACKENDS[target.backend].quantized:
        raise ValueError(
            f"target.model: the weights of {target.model} are quantized ({method}), which backend "
            f"{target.backend} does not read; choose the model that it was made from, or "
            f"target.backend: {able('quantized')}"
        )
    if method is not None and not target.gpus:
        problem = cpu_problem(folder)
        if problem is not None:
            raise ValueError(f"target.model: {problem}")
    if target.dtype == "float32" and needs_bfloat16(folder):
        raise ValueError(
            f"target.dtype: vLLM runs weights that are quantized as {target.model}'s ({method}) "
            "in bfloat16; leave it out"
        )
    _check_files("target.model", target.model, folder)
    for number, drafter in enumerate(drafters):
        path = drafter.header_path()
        if path is None or drafter.model is None:
            continue
        _check_files(f"drafters.{number}.model", drafter.model, path)
        method = quantization(path)
        if method is not None:
            raise ValueError(
                f"drafters.{number}.model: the weights of {drafter.model} are quantized "
                f"({method}), which drafters do not read; choose the model that it was made from"
            )


def _check_files(field: str, model: str, folder: Path) -> None:
    """Those of a model of the hub may not be here yet; the start checks them when they are."""
    if not is_on_hub(model):
        absent = absent_files(folder)
        if absent:
            raise ValueError(f"{field}: {', '.join(absent)} is not in {folder}; fetch it again")
        check_weights(folder)
    stop_token_ids(folder)


def check_adapters(target: TargetConfig, served_name: str) -> None:
    """Checks that each adapter has a name of its own and was made for the target."""
    if target.lora_modules and not BACKENDS[target.backend].adapters:
        raise ValueError(
            f"target.lora_modules: backend {target.backend} runs no adapters; leave them out, or "
            f"set target.backend: {able('adapters')}"
        )
    if served_name in target.lora_modules:
        raise ValueError(
            f"target.lora_modules: {served_name} is the target's own name; rename the adapter, or "
            "set served_name"
        )
    for name, folder in target.lora_modules.items():
        problem = misfit(Path(folder), target.header_path())
        if problem is not None:
            raise ValueError(
                f"target.lora_modules.{name}: {folder} was made for another model than "
                f"{target.model}: {problem}"
            )


def check_ranks(target: TargetConfig) -> None:
    """Checks that ranks can share the model: each needs whole attention heads and the key-value
    heads that these read."""
    shape = target.architecture()
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    possible = [n for n in range(1, kv_heads + 1) if heads % n == 0 and kv_heads % n == 0]
    if target.tensor_parallel not in possible:
        raise ValueError(
            f"target.tensor_parallel: {target.tensor_parallel} ranks cannot share {heads} "
            f"attention heads and {kv_heads} key-value heads evenly; possible are "
            f"{', '.join(map(str, possible))}"
        )


def check_whole_context(target: TargetConfig) -> None:
    context = target.architecture().max_position_embeddings
    limit = target.engine_args.get("max_model_len")
    if isinstance(limit, int):
        context = min(context, limit)
    if target.kv_tokens < context:
        raise ValueError(
            f"target.kv_tokens: {target.kv_tokens} are less than the {context} that one request "
            "may have, which could then wait for ever; set at least so many"
        )


def check_heads(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    """Checks that heads get the target's hidden states, that they were made for such ones, and
    that none stands where a whole model is needed."""
    if is_head(target.header_path()):
        raise ValueError(
            f"target.model: {target.model} is a head that drafts for another model; choose a whole "
            "model"
        )
    for number, drafter in enumerate(drafters):
        kind, path = drafter_kind(drafter.kind), drafter.header_path()
        if path is None:
            continue
        if not kind.reads_features:
            if is_head(path):
                raise ValueError(
                    f"drafters.{number}.kind: {drafter.model} is a head, which a drafter of kind "
                    f"{drafter.kind} cannot run; set eagle3"
                )
            continue
        own = target.architecture()
        try:
            shape = eagle3_shape(path, own.num_hidden_layers)
        except ValueError as error:
            raise ValueError(f"drafters.{number}.model: {error}") from error
        beyond = [layer for layer in shape.aux_layers if not 0 <= layer < own.num_hidden_layers]
        if beyond or shape.target_hidden_size != own.hidden_size:
            raise ValueError(
                f"drafters.{number}.model: {drafter.model} reads layers "
                f"{', '.join(map(str, shape.aux_layers))} of a target with hidden states of "
                f"{shape.target_hidden_size}; this one has {own.num_hidden_layers} layers of "
                f"{own.hidden_size}; choose a head that was trained for it"
            )
        if 0 in shape.aux_layers and not BACKENDS[target.backend].embeddings:
            raise ValueError(
                f"drafters.{number}.model: {drafter.model} reads layer 0, the embeddings, which "
                f"backend {target.backend} does not hand out; choose another head, or "
                f"target.backend: {able('embeddings')}"
            )


def check_copies(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    """Checks that a copy has floats to round, and a target that is slower than itself."""
    method = quantization(target.header_path())
    for number, drafter in enumerate(drafters):
        if not drafter_kind(drafter.kind).copies_target:
            continue
        if method is not None:
            raise ValueError(
                f"drafters.{number}.kind: {drafter.kind} rounds floats, and the weights of "
                f"{target.model} are quantized ({method}); choose another kind"
            )
        if target.runs_quantized:
            raise ValueError(
                f"drafters.{number}.kind: the target's own weights are quantized, so a copy drafts "
                "no faster than the target decodes; set target.quantize: none, or leave it out"
            )


def check_learning(drafters: Sequence[DrafterConfig], keys: Mapping[str, str]) -> None:
    learning = [number for number, drafter in enumerate(drafters) if drafter.learn is not None]
    if len(learning) > 1:
        raise ValueError(f"drafters.{learning[1]}.learn: another drafter learns; leave one of both")
    for number in learning:
        kind, learn, field = (
            drafters[number].kind,
            drafters[number].learn,
            f"drafters.{number}.learn",
        )
        assert learn is not None
        if not drafter_kind(kind).reads_features:
            raise ValueError(f"{field}: only kind eagle3 learns, not {kind}; leave it out")
        check_tenants(f"{field}.tenants", learn.tenants, keys)
        if learn.folder is not None:
            _check_absolute(f"{field}.folder", learn.folder)


def check_vocabulary(target: TargetConfig, drafters: Sequence[DrafterConfig]) -> None:
    """Checks that drafters have the target's token ids, or of a model enough of its tokens: drafts
    are sent as the target's ids."""
    for number, drafter in enumerate(drafters):
        path = drafter.header_path()
        if path is None:
            continue
        if drafter_kind(drafter.kind).maps_tokens:
            try:
                shared_tokens(target.header_path(), path)
            except ValueError as error:
                raise ValueError(f"drafters.{number}.model: {error}") from error
        elif not has_same_ids(target.header_path(), path):
            raise ValueError(
                f"drafters.{number}.model: {drafter.model} gives tokens other ids than "
                f"{target.model}; choose one that was made for it"
            )

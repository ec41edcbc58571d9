"""Model drafters that say only some of the target's tokens: what they draft, with which noise, from
which checkpoints, and that outputs stay the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from actors.hosts.specs import DrafterSpec
from actors.hosts.workers import DrafterWorker
from cluster.checkpoints import parameters_of_a_step
from engine.drafters.loading import load_model_drafter
from engine.drafters.model import ModelDrafter
from engine.drafters.reduced_checkpoint import load_reduced
from engine.drafters.runner import DraftRunner, PackedRunner
from engine.drafters.tiny import TinyRunner
from engine.drafters.tiny_weights import is_tiny
from engine.errors import IncompatibleDrafter
from engine.generate import generate
from engine.model import PackedModel
from engine.protocol import Commit, Draft
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, blurred, llama
from tests.engine.drafters.orders import Stream
from tests.engine.drafters.test_model import assert_equal, beam_search

COUNT = 60
WIDTH = 16
TARGET_HIDDEN = 32
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=5)
FILTERED = replace(SAMPLED, temperature=0.8, top_p=0.9, top_k=20)
BIASED = replace(SAMPLED, repetition_penalty=1.3, logit_bias={7: 3.0, 96: -4.0})
PROMPTS = [[5, 6, 7], [9] * 30, [3], [5, 6, 7, 8]]


def target_ids() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randperm(VOCAB, generator=generator)[:COUNT].sort().values


def target() -> PreTrainedModel:
    return llama(layers=3)


def write(path: Path, weights: dict[str, Tensor], **changes: object) -> Path:
    """A checkpoint with a Llama's config, its reduced vocabulary added."""
    model = llama(hidden=weights["model.norm.weight"].shape[0])
    model.save_pretrained(path)
    (path / "model.safetensors").unlink()
    save_file({name: one.contiguous() for name, one in weights.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    settings = {"draft_vocab_size": COUNT, "tie_word_embeddings": False, **changes}
    (path / "config.json").write_text(json.dumps(config | settings))
    return path


def drafters_model() -> PreTrainedModel:
    """Whole; a reduced one has its rows of the output matrix."""
    return blurred(llama(), 0.1)


def reduced_weights() -> dict[str, Tensor]:
    weights = {name: one.clone() for name, one in drafters_model().state_dict().items()}
    weights["lm_head.weight"] = weights["lm_head.weight"][target_ids()]
    weights["d2t"] = target_ids() - torch.arange(COUNT)
    weights["t2d"] = torch.isin(torch.arange(VOCAB), target_ids())
    return weights


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("reduced"), reduced_weights())


def runner_of(kind: str, checkpoint: Path, kv_tokens: int = 2048) -> DraftRunner:
    model, reduced = load_reduced("a", checkpoint, None, COUNT, torch.float32)
    assert is_tiny(model)
    if kind == "tiny":
        return TinyRunner(model, kv_tokens=kv_tokens, reduced=reduced)
    return PackedRunner(PackedModel(model, kv_tokens=kv_tokens), reduced)


def drafter_of(kind: str, checkpoint: Path, kv_tokens: int = 2048) -> ModelDrafter:
    return ModelDrafter("a", runner_of(kind, checkpoint, kv_tokens), target_vocab_size=VOCAB)


def with_only(model: PreTrainedModel, ids: Tensor) -> PreTrainedModel:
    """The same model, to which all other tokens are next to impossible."""
    eager = model
    eager.set_attn_implementation("eager")
    bias = torch.full((VOCAB,), -1e30)
    bias[ids] = 0
    eager.lm_head.bias = torch.nn.Parameter(bias)
    return eager


@pytest.mark.parametrize("kind", ["tiny", "packed"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, FILTERED, BIASED])
@pytest.mark.parametrize(("depth", "width"), [(5, 1), (3, 4)])
def test_a_tree_is_that_of_the_whole_model_with_all_other_tokens_ruled_out(
    checkpoint: Path, kind: str, params: SamplingParams, depth: int, width: int
) -> None:
    whole = with_only(drafters_model(), target_ids())
    drafter = drafter_of(kind, checkpoint)
    for seed in range(4):
        stream = Stream(f"seed {seed}", [5, 9, 2, 6, 5, 3, seed], params, seed)
        expected = beam_search(whole, stream, depth, width)
        tree = stream.draft(drafter, depth, width)
        assert_equal(tree, expected, 0.02)
        assert {*tree.tokens.tolist()} <= {*target_ids().tolist()}


@pytest.mark.parametrize("kind", ["tiny", "packed"])
@pytest.mark.parametrize("kv_tokens", [1024, 128])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_outputs_equal_the_references(
    checkpoint: Path, kind: str, params: SamplingParams, width: int, kv_tokens: int
) -> None:
    """Also in a pool that is too small for the batch."""
    drafter = drafter_of(kind, checkpoint, kv_tokens)
    verifier = NativeVerifier(PackedModel(llama(), kv_tokens=1024))
    streams: dict[str, list[int]] = {}
    rounds = 0
    for commit in generate(verifier, PROMPTS, params, drafter=drafter, depth=3, width=width):
        assert isinstance(commit, Commit)
        streams.setdefault(commit.request, []).extend(commit.token_ids)
        rounds += 1
    eager = llama()
    eager.set_attn_implementation("eager")
    assert streams == {
        str(number): reference.generate(eager, prompt, params, params.seed or 0)
        for number, prompt in enumerate(PROMPTS)
    }
    assert rounds < 0.9 * len(PROMPTS) * GREEDY.max_tokens  # some drafts were accepted


def test_it_marks_committed_tokens_that_it_would_have_drafted(checkpoint: Path) -> None:
    whole = with_only(drafters_model(), target_ids())
    text = reference.generate(whole, [5, 9, 2], replace(SAMPLED, max_tokens=12), 3)
    for kind in ("tiny", "packed"):
        stream = Stream("a", [5, 9, 2], SAMPLED, 3)
        stream.committed.extend([*text[:6], (text[6] + 1) % VOCAB])
        order = stream.order(0)._replace(score=True)
        (answer,) = drafter_of(kind, checkpoint).draft([order])
        assert isinstance(answer, Draft)
        assert answer.matched == (*[True] * 6, False)


def projected_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint's weights, whose matrices are projections of the target's, and the matrices."""
    whole = target()
    whole.save_pretrained(path)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: one.clone()
        for name, one in llama(hidden=WIDTH).state_dict().items()
        if name.startswith(("model.layers", "model.norm"))
    }
    into = torch.randn(WIDTH, TARGET_HIDDEN, generator=generator)
    out = torch.randn(TARGET_HIDDEN, WIDTH, generator=generator)
    weights |= {"embed_projection.weight": into, "output_projection.weight": out}
    weights["d2t"] = target_ids() - torch.arange(COUNT)
    return weights, {
        "model.embed_tokens.weight": whole.model.embed_tokens.weight.detach() @ into.T,
        "lm_head.weight": whole.lm_head.weight.detach()[target_ids()] @ out,
    }


def test_matrices_that_are_left_out_are_projections_of_the_targets(tmp_path: Path) -> None:
    weights, matrices = projected_weights(tmp_path / "target")
    path = write(tmp_path / "drafter", weights, target_hidden_size=TARGET_HIDDEN)
    model, reduced = load_reduced("a", path, tmp_path / "target", COUNT, torch.float32)
    assert reduced.target_ids.tolist() == target_ids().tolist()
    for name, expected in matrices.items():
        assert torch.allclose(model.state_dict()[name], expected, atol=1e-5)


def test_it_is_loaded_by_its_spec_and_measured(tmp_path: Path) -> None:
    weights, _ = projected_weights(tmp_path / "target")
    path = write(tmp_path / "drafter", weights, target_hidden_size=TARGET_HIDDEN)
    spec = DrafterSpec("a", checkpoint=path, target=tmp_path / "target", kv_tokens=512)
    worker = DrafterWorker(spec, "a", VOCAB)
    worker.load()
    assert worker.measure(tmp_path, 0.01).step.predict(100, 4) > 0


def test_tied_embeddings_are_the_output_matrix_too(tmp_path: Path) -> None:
    weights = reduced_weights()
    del weights["lm_head.weight"]
    path = write(tmp_path / "tied", weights, tie_word_embeddings=True)
    model, _ = load_reduced("a", path, None, COUNT, torch.float32)
    expected = weights["model.embed_tokens.weight"][target_ids()]
    assert torch.equal(model.lm_head.weight, expected)


def test_a_vocabulary_in_any_order_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    """Ties go to the target's lowest id, so rows are put in the order of ids."""
    weights = reduced_weights()
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(2))
    weights["lm_head.weight"] = weights["lm_head.weight"][order]
    weights["d2t"] = target_ids()[order] - torch.arange(COUNT)
    other = write(tmp_path / "shuffled", weights)
    (one, ids), (two, others) = (
        load_reduced("a", path, None, COUNT, torch.float32) for path in (checkpoint, other)
    )
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)
    assert ids.target_ids.tolist() == others.target_ids.tolist()


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("no d2t names them", {"d2t": None}),
        ("d2t has 59 tokens", {"d2t": torch.zeros(59, dtype=torch.int64)}),
        ("twice, or beyond the 97", {"d2t": torch.full((COUNT,), 90)}),
        ("twice, or beyond the 97", {"d2t": -torch.arange(COUNT)}),
        ("lm_head.weight", {"lm_head.weight": torch.zeros(59, 32)}),
        ("None has no weight named embed_tokens", {"model.embed_tokens.weight": None}),
    ],
)
def test_a_checkpoint_that_does_not_fit_together_is_refused(
    message: str, changes: dict[str, Tensor | None], tmp_path: Path
) -> None:
    changed = reduced_weights() | changes
    weights = {name: one for name, one in changed.items() if one is not None}
    path = write(tmp_path / "wrong", weights)
    with pytest.raises(IncompatibleDrafter, match=rf"'a': model: [^$]*{message}"):
        load_model_drafter(
            "a", path, dtype=None, device="cpu", kv_tokens=512, target_vocab_size=VOCAB
        )


def test_headers_say_what_a_step_reads(checkpoint: Path, tmp_path: Path) -> None:
    """Embeddings are looked up, so a large vocabulary keeps no model from the compiled loops."""
    embeddings, maps = VOCAB * 32, COUNT + VOCAB
    whole = llama()
    whole.save_pretrained(tmp_path / "whole")
    assert parameters_of_a_step(tmp_path / "whole") == whole.num_parameters() - embeddings
    model, _ = load_reduced("a", checkpoint, None, COUNT, torch.float32)
    reads = int(model.num_parameters()) - embeddings
    assert parameters_of_a_step(checkpoint) == reads + maps
    weights, _ = projected_weights(tmp_path / "target")
    path = write(tmp_path / "projected", weights)
    model, _ = load_reduced("a", path, tmp_path / "target", COUNT, torch.float32)
    projections = 2 * WIDTH * TARGET_HIDDEN
    reads = int(model.num_parameters()) - VOCAB * WIDTH
    assert parameters_of_a_step(path) == reads + projections + COUNT

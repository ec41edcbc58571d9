"""The copy of a head that vLLM reads."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.real.whole_head import whole_head
from cluster.built_in_models import TARGET, model_path
from engine.drafters.eagle3_head import Eagle3Head
from lab.zoo.head_model import TrainedHead


def test_the_copy_has_the_targets_rows_and_computes_what_the_head_computes(tmp_path: Path) -> None:
    target = model_path(TARGET)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    made = TrainedHead(model, torch.arange(3, model.config.vocab_size, 8))
    made.aux_layers = (1, 2, 3)
    compact, copy = tmp_path / "compact", tmp_path / "copy"
    made.save(compact, 3, TARGET, output_matrix=False)
    copy.mkdir()
    assert whole_head(compact, target, copy) == copy
    ours = Eagle3Head.load(compact, "cpu", torch.float32, target)
    theirs = Eagle3Head.load(copy, "cpu", torch.float32, target)
    hidden = torch.randn(4, model.config.hidden_size)
    assert torch.equal(ours.logits(hidden), theirs.logits(hidden))
    assert torch.equal(ours.vocabulary.target_ids, theirs.vocabulary.target_ids)
    # The copy has an output matrix of its own, or it would be copied in turn.
    assert whole_head(copy, target, tmp_path) == copy

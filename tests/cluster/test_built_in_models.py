"""The built-in models are found by name, and stay small."""

import pytest

from cluster.built_in_models import HEADS, MODELS, MODELS_DIR, model_path

MAX_BYTES = 25_000_000


@pytest.mark.parametrize("names", [MODELS, HEADS])
def test_the_zoo_and_its_heads_fit_the_repository(names: tuple[str, ...]) -> None:
    folders = [model_path(name) for name in names]
    sizes = [file.stat().st_size for folder in folders for file in folder.iterdir()]
    assert 0 < sum(sizes) <= MAX_BYTES
    assert {folder.name for folder in MODELS_DIR.iterdir()} == {*MODELS, *HEADS}

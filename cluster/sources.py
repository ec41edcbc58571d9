"""Where a config's models come from: a directory, the zoo, the default model, a GGUF file, the hub.

A config check needs a model's headers only (config.json, tokenizer), a host all of its files.
Imports nothing heavy, so that a config check stays fast.
"""

import tempfile
from pathlib import Path

from cluster import hub
from cluster.built_in_models import HEADS, MODELS, SMOLLM2, has_smollm2, model_path, smollm2_path
from cluster.cache import cache_dir, digest
from cluster.checkpoint_files import QUANTIZED, WEIGHTS, pickled_files
from cluster.checkpoints import (
    parameters,
    quantized_matrices,
)

ZOO = "zoo/"
GGUF = ".gguf"
_CONVERSION = 3
"""Another number where a GGUF file is converted to something else than before."""


def check_source(model: str) -> str:
    """Raises ValueError if there is no such model; returns its name."""
    named = model == SMOLLM2 or model.startswith(ZOO)
    if not named and not Path(model).is_absolute() and Path(model).exists():
        raise ValueError(
            f"{model}: write the whole path, {Path(model).resolve()}, for processes of the "
            "application run in other folders; where the hub's is meant, start in another folder"
        )
    header_folder(model)
    return model


def header_folder(model: str) -> Path:
    """A folder with config.json and tokenizer. Those of a GGUF file are written into the cache,
    those of a model of the hub are fetched into its cache, if they are not there yet."""
    if model.startswith(ZOO):
        names = (*MODELS, *HEADS)
        if model.removeprefix(ZOO) not in names:
            raise ValueError(f"the zoo has {', '.join(ZOO + name for name in names)}")
        return model_path(model.removeprefix(ZOO))
    if model == SMOLLM2:
        if not has_smollm2():
            raise ValueError(
                f"{SMOLLM2} is not on this machine; `make model` fetches it, and "
                "cluster/zoo.yaml serves the built-in models in its place"
            )
        return smollm2_path()
    path = Path(model)
    if (path / "config.json").is_file():
        return path
    if path.suffix == GGUF:
        return _gguf_headers(path)
    if path.is_dir():
        raise ValueError(f"{model} has no config.json: it is no Hugging Face checkpoint")
    if hub.is_hub_id(model):
        return hub.header_folder(model)
    raise ValueError(
        f"{model} is neither a directory with a Hugging Face checkpoint nor a {GGUF} file nor "
        f"{ZOO}NAME nor {SMOLLM2} nor org/name on the Hugging Face hub"
    )


def checkpoint_folder(model: str) -> Path:
    """The folder with the weights as well, which are converted or fetched first if need be."""
    folder = header_folder(model)
    if _is_gguf(model):
        _write_gguf_weights(Path(model), folder)
    elif is_on_hub(model):
        folder = hub.checkpoint_folder(model)
    check_weights(folder)
    return folder


def parameters_of(model: str) -> int | None:
    """The number of weights, without converting or fetching any; None if no header has it."""
    known = parameters(header_folder(model))
    if known is None and _is_gguf(model):
        from cluster.gguf_conversion import parameters_in

        return parameters_in(Path(model))
    if known is None and is_on_hub(model):
        return hub.parameters_on_the_hub(model)
    return known


_TILE_BYTES = {
    "Q4_0": 20 / 18, "Q4_1": 1.0, "Q5_0": 36 / 22, "Q5_1": 36 / 24, "Q8_0": 1.0,
    "Q4_K": 192 / 144, "Q5_K": 320 / 176, "Q6_K": 384 / 210,
}  # fmt: skip
"""Memory that quantized weights take, for each byte in a GGUF file, by their types: those that
engine/cpu/quantized_weights.py reads."""


def quantized_bytes(model: str) -> int | None:
    """Memory of a GGUF file's quantized weights when they are served as they are; None if the model
    is served as floats."""
    blocks = header_folder(model) / QUANTIZED
    if blocks.is_file():
        stored = quantized_matrices(blocks)
    elif _is_gguf(model):
        from cluster.gguf_conversion import matrices_in

        stored = matrices_in(Path(model))
    else:
        return None
    if any(kind not in _TILE_BYTES for kind, _ in stored):
        return None
    return int(sum(size * _TILE_BYTES[kind] for kind, size in stored))


def name_of(model: str) -> str:
    """The model's name in the API, if the config names none."""
    if _is_gguf(model):
        return Path(model).stem
    return model.partition("@")[0] if is_on_hub(model) else header_folder(model).name


def _is_gguf(model: str) -> bool:
    return Path(model).suffix == GGUF and not Path(model).is_dir()


def is_on_hub(model: str) -> bool:
    named = model.startswith(ZOO) or Path(model).exists() or _is_gguf(model)
    return hub.is_hub_id(model) and not named


def _gguf_headers(file: Path) -> Path:
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    folder = _conversion_of(file)
    if not folder.is_dir():
        from cluster.gguf_conversion import write_headers  # few configs need it

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            write_headers(file, Path(scratch) / "headers")
            _check_unaltered(file, folder)
            try:
                (Path(scratch) / "headers").rename(folder)
            except OSError:  # not empty: another process has written it meanwhile
                if not folder.is_dir():
                    raise
    return folder


def _conversion_of(file: Path) -> Path:
    return cache_dir() / "gguf" / f"{file.stem}-{_CONVERSION}-{digest(file)}"


def _check_unaltered(file: Path, conversion: Path) -> None:
    """What was read of another file must not be kept as this one's conversion."""
    if _conversion_of(file) != conversion:
        raise ValueError(f"{file} was altered while it was read; start again")


def _write_gguf_weights(file: Path, folder: Path) -> None:
    if not (folder / WEIGHTS).is_file():
        from cluster.gguf_conversion import write_weights

        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            write_weights(file, Path(scratch) / WEIGHTS)
            _check_unaltered(file, folder)
            for name in (QUANTIZED, WEIGHTS):
                (Path(scratch) / name).replace(folder / name)


def check_weights(path: Path) -> None:
    """Raises ValueError for weights that only unpickling could read."""
    stored, pickled = parameters(path), pickled_files(path)
    if stored is None and pickled:
        raise ValueError(
            f"{path} has no safetensors; {', '.join(pickled)} is not read, because a pickle may "
            "run any code: choose a model with safetensors, or convert it where you trust it"
        )

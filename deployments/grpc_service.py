"""The gRPC service of spindle.proto. Serve's proxies import this module, so it imports nothing
heavy.

It corresponds to the service code that protobuf's compiler would generate. The messages need no
generated code: they are protobuf's own well-known types.
"""

from typing import Protocol

import grpc
from google.protobuf.wrappers_pb2 import StringValue

_SERVICE = "spindle.Spindle"


class Servicer(Protocol):
    """What Serve passes to `add_to_server`: an object with the RPC methods as attributes, whose
    calls reach deployments/ingress/grpc.py."""

    @property
    def Generate(self) -> object: ...  # noqa: N802 - the name in spindle.proto

    @property
    def Stream(self) -> object: ...  # noqa: N802 - the name in spindle.proto


def add_to_server(servicer: Servicer, server: grpc.Server) -> None:
    """Registers the service; named in `grpc_options.grpc_servicer_functions` of a Serve config."""
    types = (StringValue.FromString, StringValue.SerializeToString)
    handlers = {
        "Generate": grpc.unary_unary_rpc_method_handler(servicer.Generate, *types),
        "Stream": grpc.unary_stream_rpc_method_handler(servicer.Stream, *types),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

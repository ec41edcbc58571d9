"""The gRPC service of spindle.proto, for Serve's proxies, which import it: nothing heavy here.

It is what protobuf's compiler would generate. There is nothing to generate for its messages, which
are protobuf's own.
"""

from typing import Protocol

import grpc
from google.protobuf.wrappers_pb2 import StringValue

_SERVICE = "spindle.Spindle"


class Servicer(Protocol):
    """Its methods are attributes; Serve passes a stand-in and calls deployments/ingress/grpc.py."""

    @property
    def Generate(self) -> object: ...  # noqa: N802 - the name in spindle.proto

    @property
    def Stream(self) -> object: ...  # noqa: N802 - the name in spindle.proto


def add_to_server(servicer: Servicer, server: grpc.Server) -> None:
    """For `grpc_options.grpc_servicer_functions` of a Serve config."""
    types = (StringValue.FromString, StringValue.SerializeToString)
    handlers = {
        "Generate": grpc.unary_unary_rpc_method_handler(servicer.Generate, *types),
        "Stream": grpc.unary_stream_rpc_method_handler(servicer.Stream, *types),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

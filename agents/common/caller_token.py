"""The token by which a process proves to `belay server` who it is; kubelet projects it for the audience ``belay``.

A pod that mounts none sends none; MindCluster's own clients never do. Source: Kubernetes documentation, "Service
account token volume projection".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

VARIABLE: Final = "BELAY_TOKEN_FILE"
FILE: Final = "/var/run/secrets/belay.dev/token"
MAX_CHARS: Final = 16_384

Metadata = tuple[tuple[str, str], ...]


def metadata(environ: Mapping[str, str] | None = None) -> Metadata:
    """Return metadata that proves who calls; empty without a readable token. Reads the file, which kubelet renews."""
    path = Path((os.environ if environ is None else environ).get(VARIABLE) or FILE)
    try:
        # a pipe or device in its place must not hold up the caller
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
            token = source.read(MAX_CHARS).decode("ascii").strip()
    except (OSError, UnicodeDecodeError, ValueError):
        return ()
    return (("authorization", f"Bearer {token}"),) if token and token.isprintable() else ()


def with_token(channel: grpc.Channel, proof: Callable[[], Metadata] = metadata) -> grpc.Channel:
    """Return the channel with the newest token in the metadata of each call."""
    return grpc.intercept_channel(channel, _TokenInterceptor(proof))


if TYPE_CHECKING:
    _Unary = grpc.UnaryUnaryClientInterceptor[Any, Any]
    _Stream = grpc.UnaryStreamClientInterceptor[Any, Any]
else:
    # they take no parameters at run time
    _Unary, _Stream = grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor


class _CallDetails(grpc.ClientCallDetails):
    """The details of a call with more metadata."""

    def __init__(self, of: Any, more: Metadata) -> None:
        self.method, self.timeout, self.credentials = of.method, of.timeout, of.credentials
        self.metadata = (*(of.metadata or ()), *more)
        self.wait_for_ready = getattr(of, "wait_for_ready", None)
        self.compression = getattr(of, "compression", None)


class _TokenInterceptor(_Unary, _Stream):
    """Adds the token to the metadata of each call."""

    def __init__(self, proof: Callable[[], Metadata]) -> None:
        self._proof = proof

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Make the call with the token."""
        return continuation(_CallDetails(client_call_details, self._proof()), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Open the stream with the token."""
        return continuation(_CallDetails(client_call_details, self._proof()), request)

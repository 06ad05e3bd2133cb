"""Where an API server is, and as whom it is called."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Endpoint:
    """One API server and our credentials; ``authorization`` is never printed."""

    host: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    rotates: bool = False
    """Whether the token comes from a file that others renew."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}


Loader = Callable[[], Endpoint]
"""Reads the credentials again; blocking, so it runs in a thread."""


def is_address(host: str) -> bool:
    """Whether it is the address of a server: scheme, host, and a port that is one."""
    try:
        parts = urlsplit(host)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bad port, an open bracket
        return False

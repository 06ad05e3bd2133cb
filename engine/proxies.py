"""The proxy that the environment names for an address, for calls that carry a token.

aiohttp's own reading of the environment takes passwords of ~/.netrc too: beside a token's header it refuses the call,
or sends both.
"""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit

from belay.engine.errors import InputError


def names_proxy() -> bool:
    """Whether the environment names a proxy; on a Mac and on Windows the system's settings may too."""
    settings = sys.platform in ("darwin", "win32")
    if not settings and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False  # what looks at the settings takes long to import
    from urllib.request import getproxies

    return bool(getproxies().keys() - {"no"})


def proxy_for(address: str) -> str | None:
    """The address of the proxy, or None if the call goes straight to the server.

    Raises:
        InputError: the environment names a proxy that is not one of HTTP.
    """
    if not names_proxy():
        return None
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(address)
    named = getproxies().get(parts.scheme, "")
    if not named or proxy_bypass(parts.hostname or ""):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if urlsplit(proxy).scheme.lower() not in ("http", "https"):
        raise InputError(f"a proxy of {urlsplit(proxy).scheme[:20]!r} cannot be used", where=f"{parts.scheme}_proxy",
                         hint="Name one of HTTP, or the server in no_proxy.")  # fmt: skip
    return proxy

"""The proxy that the environment names for an address, for calls that carry a token.

aiohttp's own reading of the environment takes passwords of ~/.netrc too: beside a token's header it refuses the call,
or sends both.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from belay.engine.errors import InputError


def proxy_for(address: str) -> str | None:
    """The address of the proxy, or None if the call goes straight to the server.

    Raises:
        InputError: the environment names a proxy that is not one of HTTP.
    """
    parts = urlsplit(address)
    named = getproxies().get(parts.scheme, "")
    if not named or proxy_bypass(parts.hostname or ""):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if urlsplit(proxy).scheme.lower() not in ("http", "https"):
        raise InputError(f"a proxy of {urlsplit(proxy).scheme[:20]!r} cannot be used", where=f"{parts.scheme}_proxy",
                         hint="Name one of HTTP, or the server in no_proxy.")  # fmt: skip
    return proxy

"""A live cluster read once, for commands that answer and go.

A person waits in front of it: an address where nothing listens is said within seconds, while the engine's own processes
would go on trying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from engine.errors import BelayError
from engine.kube import Kube, KubeError, Unavailable
from engine.kube.credentials import loader
from engine.kube.transport import Transport
from engine.snapshot import fetch

T = TypeVar("T")
ANSWERS_WITHIN: Final = 3.0
"""Seconds in which the API server must give a sign of life."""
CALL_WITHIN: Final = 15.0
"""Longest time for one call, in seconds; a page of 500 large objects takes a few."""


def read_live(kubeconfig: str | None) -> list[dict[str, Any]]:
    """Every object the engine looks at.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """
    return with_kube(kubeconfig, fetch)


def with_kube(kubeconfig: str | None, use: Callable[[Kube], Awaitable[T]], within: float = CALL_WITHIN) -> T:
    """Run one coroutine with a connection to the cluster; ``within`` bounds each of its calls, in seconds.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """

    async def run() -> T:
        load = loader(kubeconfig)
        await _knock(Transport(load, deadline=ANSWERS_WITHIN, attempt=ANSWERS_WITHIN))
        async with Kube(load, transport=Transport(load, deadline=within, attempt=within)) as kube:
            return await use(kube)

    try:
        return asyncio.run(run())
    except KubeError as error:
        raise BelayError(str(error), hint="Is KUBECONFIG set to the cluster you mean?") from error


def place(url: str) -> str:
    """Scheme, host and port of a server; paths and user names may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def _knock(transport: Transport) -> None:
    """Raise BelayError when nobody answers; whatever else is wrong shows later."""
    await transport.open()
    try:
        await transport.call("GET", "/version")
    except Unavailable as error:
        raise BelayError(
            f"the API server {place(transport.host)} does not answer ({error.message})",
            hint="Is it running, and KUBECONFIG set to the cluster you mean?",
        ) from error
    except KubeError:
        return
    finally:
        await transport.close()

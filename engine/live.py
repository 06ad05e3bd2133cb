"""A live cluster read once, for commands that answer and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from engine.errors import BelayError
from engine.kube import Kube, KubeError
from engine.snapshot import fetch

T = TypeVar("T")


def read_live(kubeconfig: str | None) -> list[dict[str, Any]]:
    """Every object the engine looks at.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """
    return with_kube(kubeconfig, fetch)


def with_kube(kubeconfig: str | None, use: Callable[[Kube], Awaitable[T]]) -> T:
    """Run one coroutine with a connection to the cluster.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """

    async def run() -> T:
        async with Kube.from_config(kubeconfig) as kube:
            return await use(kube)

    try:
        return asyncio.run(run())
    except KubeError as error:
        raise BelayError(str(error), hint="Is KUBECONFIG set to the cluster you mean?") from error

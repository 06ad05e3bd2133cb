"""A live cluster read once, for commands.

A user waits for the answer, so an address without a listener is reported within seconds. The engine's own processes
keep trying instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from belay.engine.errors import BelayError
from belay.engine.kube import Kube, KubeError, Unavailable
from belay.engine.kube.credentials import loader
from belay.engine.kube.one_shot import ANSWERS_WITHIN, CALL_WITHIN, no_answer
from belay.engine.kube.transport import Transport

T = TypeVar("T")


def read_live(kubeconfig: str | None, context: str | None = None) -> list[dict[str, Any]]:
    """Every object that the engine uses; ``context`` of the kubeconfig, by default its current one.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """
    return with_kube(kubeconfig, _everything, context=context)


async def _everything(kube: Kube) -> list[dict[str, Any]]:
    # reads of the status alone load no documents
    from belay.engine.observe.resources import fetch
    from belay.engine.observe.workload_watches import served_kinds

    found = await fetch(kube)
    return found + await fetch(kube, tuple(served_kinds(found)))


def with_kube(
    kubeconfig: str | None, use: Callable[[Kube], Awaitable[T]], within: float = CALL_WITHIN, context: str | None = None
) -> T:
    """Run one coroutine with a connection to the cluster; ``within`` bounds each of its calls, in seconds.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """

    async def run() -> T:
        load = loader(kubeconfig, context)
        await _check_connection(Transport(load, deadline=ANSWERS_WITHIN, attempt=ANSWERS_WITHIN))
        async with Kube(load, transport=Transport(load, deadline=within, attempt=within)) as kube:
            return await use(kube)

    try:
        return asyncio.run(run())
    except KubeError as error:
        raise BelayError(str(error), hint="Is KUBECONFIG set to the cluster you mean?") from error


async def _check_connection(transport: Transport) -> None:
    """Raise BelayError when no server answers; other errors show in later calls."""
    await transport.open()
    try:
        await transport.call("GET", "/version")
    except Unavailable as error:
        raise no_answer(transport.host, error) from error
    except KubeError:
        return
    finally:
        await transport.close()

"""The simulated cluster: its nodes and, where the cluster has none, its controllers. It uses only the Kubernetes API.

It runs against the sandbox's API server and against a real kube-apiserver.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterable

from belay.engine.kube import CONFIGMAP, NAMESPACE, Conflict, Kube, cancel_all, run_all, run_many
from belay.engine.log import get
from belay.engine.sandbox.cache import WORLD_KINDS, Cache, Json
from belay.engine.sandbox.containers import Training
from belay.engine.sandbox.controllers.manager import Controllers
from belay.engine.sandbox.node_control import SandboxNode
from belay.engine.sandbox.nodes import Kubelets
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.sandbox.shapes import INFERENCE_CHIPS, MOST_CHIPS, Shapes
from belay.engine.wire import names

_log = get("sandbox.world")
NAMESPACES = (
    "default",
    "kube-system",
    "kube-node-lease",
    names.NODE_NAMESPACE,
    names.SCHEDULER_NAMESPACE,
    "cluster-system",
    names.SYSTEM,
    names.NODES,
)
"""Namespaces that the simulated cluster and Belay write to."""


def members(settings: SandboxSettings, shapes: Shapes) -> list[SandboxNode]:
    """``node-1`` … ``node-N`` of the product, and ``infer-1`` with 310P cards if enabled; or the servers as named."""
    if settings.servers:
        products = [product for product, count in settings.servers for _ in range(count)]
        return [
            SandboxNode(f"node-{number + 1}", number, shapes.of(product, shapes.most_chips(product)))
            for number, product in enumerate(products)
        ]
    out = [
        SandboxNode(f"node-{number + 1}", number, shapes.of(settings.product, MOST_CHIPS))
        for number in range(settings.nodes)
    ]
    if settings.infer_node:
        out.append(SandboxNode("infer-1", settings.nodes, shapes.of(shapes.inference, INFERENCE_CHIPS)))
    return out


class SandboxCluster:
    """Nodes and controllers over one connection."""

    def __init__(
        self,
        kube: Kube,
        settings: SandboxSettings,
        shapes: Shapes,
        nodes: Iterable[SandboxNode] | None = None,
        training: Training | None = None,
    ) -> None:
        self.settings = settings
        self._kube = kube
        self._cache = Cache(kube, WORLD_KINDS)
        self.kubelets = Kubelets(
            self._cache,
            members(settings, shapes) if nodes is None else nodes,
            settings,
            shapes.suffixes,
            training=training,
        )
        self._controllers = Controllers(self._cache, settings) if settings.controllers else None

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Start nodes and controllers, call ``ready``, and run until cancelled."""
        await ensure_namespaces(self._kube)
        works = [self._cache.run(), self.kubelets.run(), self._announce(ready)]
        if self._controllers is not None:
            works.append(self._controllers.run())
        await run_all(*works)

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self.kubelets.registered.wait()
        _log.info("nodes registered", nodes=len(self.kubelets.members))
        ready()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SandboxCluster]:
        """Run the cluster in a block; leaving it stops every kubelet and controller."""
        started = asyncio.Event()
        task = asyncio.create_task(self.run(started.set))
        waiting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield self
        finally:
            await cancel_all(waiting, task)


async def ensure_namespaces(kube: Kube) -> None:
    """Create missing namespaces."""

    async def ensure(name: str) -> None:
        if await kube.get(NAMESPACE, name) is None:
            with contextlib.suppress(Conflict):
                await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    async for outcome in run_many([lambda n=name: ensure(n) for name in NAMESPACES]):  # type: ignore[misc]
        if outcome.error is not None:
            raise outcome.error


async def control(kube: Kube, node: str, text: str | None) -> Json:
    """Set key ``node.json`` of a node's control ConfigMap; None removes it. Other keys (faults) stay."""
    body: Json = {"data": {"node.json": text}}
    name = names.SIM_PREFIX + node
    if await kube.get(CONFIGMAP, name, names.NODES) is None:
        fresh = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": names.NODES}}
        with contextlib.suppress(Conflict):
            await kube.create(CONFIGMAP, fresh)
    return await kube.patch(CONFIGMAP, name, body, names.NODES)


async def until_signal() -> None:
    """Return when the process is asked to end (SIGINT, SIGTERM)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()

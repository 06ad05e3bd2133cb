"""One set of watches for many nodes: what a fleet of simulated nodes in one process shares.

A hundred agents would hold three hundred watches; this class holds three and passes each change to the nodes that it
concerns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from belay.agents.common.client import KubeClient
from belay.engine.wire.links import PREFIX as LINKS_PREFIX
from belay.engine.wire.names import NODES, ORDERS_PREFIX, POLICY_PREFIX, SIM_PREFIX, SYSTEM

_NEEDLES: Final = {
    SYSTEM: (ORDERS_PREFIX.encode(), POLICY_PREFIX.encode(), LINKS_PREFIX.encode()),
    NODES: (SIM_PREFIX.encode(),),
}


class _Wakeups:
    """Wakes the tasks that wait for a key."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def wake(self, key: str) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    def wake_all(self) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()

    def join(self, key: str) -> asyncio.Event:
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        return event

    def leave(self, key: str, event: asyncio.Event) -> None:
        events = self._waiting.get(key, set())
        events.discard(event)
        if not events:
            self._waiting.pop(key, None)


class SharedWatches:
    """The API server for every node of a fleet. While `run` is running, `config_map` and `pods` yield changes."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._wakeups = _Wakeups()
        self._config_maps: dict[str, Mapping[str, dict[str, Any]]] = {}
        self._pods: dict[str, dict[str, Mapping[str, Any]]] | None = None
        self._where: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namespace in _NEEDLES:
                group.create_task(self._follow_config_maps(namespace))
            group.create_task(self._follow_pods())

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap of belay-system or belay-nodes."""
        key = f"{namespace}/{name}"
        event = self._wakeups.join(key)
        try:
            while True:
                event.clear()
                if namespace in self._config_maps:
                    yield self._config_maps[namespace].get(key)
                await event.wait()
        finally:
            self._wakeups.leave(key, event)

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Follow the pods of a node."""
        key = f"pods/{node}"
        event = self._wakeups.join(key)
        try:
            while True:
                event.clear()
                if self._pods is not None:
                    yield list(self._pods.get(node, {}).values())
                await event.wait()
        finally:
            self._wakeups.leave(key, event)

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap from the API server."""
        return await self._client.get_config_map(namespace, name)

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it."""
        await self._client.put_config_map(body)

    async def replace_config_map(self, body: Mapping[str, Any]) -> None:
        """Replace a ConfigMap as a whole; ApiError 409 when it has changed meanwhile."""
        await self._client.replace_config_map(body)

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; succeed when there is none."""
        await self._client.delete_config_map(namespace, name)

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        """Read the pods of a node from the API server."""
        return await self._client.list_pods(node)

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        """Read a node."""
        return await self._client.get_node(node)

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Set labels and annotations of a node."""
        await self._client.patch_node(node, labels, annotations)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event; succeed when one of that name exists."""
        await self._client.create_event(body)

    async def _follow_config_maps(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        async for objects, changed in self._client.follow(path, needles=_NEEDLES[namespace]):
            self._config_maps[namespace] = objects
            if changed is None:
                self._wakeups.wake_all()
            else:
                self._wakeups.wake(f"{namespace}/{changed['metadata']['name']}")

    async def _follow_pods(self) -> None:
        async for objects, changed in self._client.follow("/api/v1/pods"):
            if changed is None:
                self._pods, self._where = {}, {}
                for key, pod in objects.items():
                    self._settle(key, pod)
                self._wakeups.wake_all()
                continue
            metadata = changed.get("metadata") or {}
            key = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
            self._settle(key, objects.get(key))

    def _settle(self, key: str, pod: Mapping[str, Any] | None) -> None:
        pods = self._pods if self._pods is not None else {}
        before = self._where.pop(key, "")
        if before:
            pods.get(before, {}).pop(key, None)
        node = str(((pod or {}).get("spec") or {}).get("nodeName") or "")
        if pod is not None and node:
            pods.setdefault(node, {})[key] = pod
            self._where[key] = node
        for name in {before, node} - {""}:
            self._wakeups.wake(f"pods/{name}")

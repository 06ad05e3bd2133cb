"""The agent of a node and its device plugin in one process: they share state, and end in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.common.client import KubeClient
from agents.common.clock import NodeClock
from agents.drivers.base import Driver
from agents.kubelet.kubeletpods import KubeletPods
from agents.kubelet.plugin import DevicePlugin
from agents.kubelet.settings import PluginSettings
from agents.node.agent import NodeAgent
from agents.node.publicnames import PublicNames
from agents.node.settings import Settings
from engine.wire.policy import NodePolicy


class AgentAndPlugin:
    """Runs both. The plugin ends first, so that no chip is allocated without the agent that protects it."""

    def __init__(
        self,
        node: str,
        driver: Driver,
        client: KubeClient,
        folder: Path,
        settings: Settings,
        policy: NodePolicy,
        plugin: PluginSettings,
        headers: Callable[[], Mapping[str, str]],
        plugins: Path | None = None,
        names: PublicNames | None = None,
        hooks: Path | None = None,
        claimed: Mapping[int, str] | None = None,
    ) -> None:
        clock = NodeClock()
        self._kubelet = (
            KubeletPods(plugin.host_ip, plugin.kubelet_port, headers) if plugin.from_kubelet else None
        )  # fmt: skip
        self.plugin = DevicePlugin(
            node,
            driver,
            client,
            folder,
            plugin,
            clock,
            lambda: self.agent.state,
            read_pods=self._read_pods(names or PublicNames()),
            names=names,
            wake=lambda: self.agent.refresh_soon(),
        )
        self.agent = NodeAgent(
            node,
            driver,
            client,
            folder,
            settings,
            clock,
            policy=policy,
            witnesses=self.plugin.witnesses,
            observers=[self.plugin.changed],
            plugins=plugins,
            hooks=hooks,
            claimed=claimed,
        )

    def _read_pods(self, names: PublicNames) -> Callable[[], Awaitable[Sequence[Mapping[str, Any]]]] | None:
        kubelet = self._kubelet
        if kubelet is None:
            return None

        async def read() -> Sequence[Mapping[str, Any]]:
            return [names.pod(body) if names else body for body in await kubelet.read()]

        return read

    async def run(self) -> None:
        """Run until cancelled, or until one of them fails. SIGHUP registers everything with kubelet again."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(signal.SIGHUP, self.plugin.register_again)
        agent, plugin = asyncio.create_task(self.agent.run()), asyncio.create_task(self.plugin.run())
        try:
            await asyncio.wait([agent, plugin], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (plugin, agent):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(signal.SIGHUP)
            if self._kubelet is not None:
                await self._kubelet.close()
        for task in (plugin, agent):
            if not task.cancelled():
                task.result()

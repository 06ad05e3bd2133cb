"""The agent of a node and its device plugin in one process: they share state, and end in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from belay.agents.common.clock import NodeClock
from belay.agents.daemon.context import AgentContext
from belay.agents.kubelet.kubeletpods import KubeletPods
from belay.agents.kubelet.plugin import DevicePlugin
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.publicnames import PublicNames


class AgentAndPlugin:
    """Runs both. The plugin ends first, so that no chip is allocated without the agent that protects it."""

    def __init__(
        self,
        context: AgentContext,
        settings: PluginSettings,
        headers: Callable[[], Mapping[str, str]],
        names: PublicNames | None = None,
    ) -> None:
        agent = context.agent
        self._agent = agent
        self._kubelet = KubeletPods(settings.host_ip, settings.kubelet_port, headers) if settings.from_kubelet else None
        self.plugin = DevicePlugin(
            agent.node,
            context.driver,
            context.client,
            context.folder,
            settings,
            NodeClock(),
            agent.known_state,
            read_pods=self._read_pods(names or PublicNames()),
            names=names,
            wake=agent.refresh_soon,
        )
        agent.join(witnesses=self.plugin.witnesses, observer=self.plugin.changed)

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
        agent, plugin = asyncio.create_task(self._agent.run()), asyncio.create_task(self.plugin.run())
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

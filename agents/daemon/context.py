"""What the parts of an agent may use of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from belay.agents.common.client import KubeClient
from belay.agents.drivers.base import Driver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.engine.wire.policy import NodePolicy


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """What a part may use of the agent that it runs beside.

    Args:
        agent: it does not run yet, so that a part can still join it.
        client: the API server, with resources and chips under the names that others use.
        api: the API server, with Belay's own names.
        folder: survives restarts.
        cuts_chips: the device plugin cuts chips as pods need parts of them.
    """

    agent: NodeAgent
    driver: Driver
    client: KubeClient
    api: KubeClient
    folder: Path
    settings: Settings
    policy: NodePolicy
    cuts_chips: bool = False

    @property
    def node(self) -> str:
        """The node's name."""
        return self.agent.node

"""Putting the hardware part together for a driver."""

from __future__ import annotations

from collections.abc import Callable

from agents.drivers.base import Driver
from agents.node.client import KubeClient
from agents.node.clock import Clock
from agents.node.hardware.part import Hardware
from agents.node.hardware.settings import HardwareSettings
from agents.node.settings import Settings
from agents.node.state import NodeState
from engine.wire.policy import NodePolicy


def hardware_part(
    node: str,
    client: KubeClient,
    settings: Settings,
    hardware: HardwareSettings,
    policy: NodePolicy,
    driver: Driver,
    state: Callable[[], NodeState | None],
) -> Hardware:
    """The part as the settings want it."""
    return Hardware(node, client, settings, hardware, policy, Clock(), state)


__all__ = ["hardware_part"]

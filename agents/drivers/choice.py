"""Which driver a name chooses: `dcmi`, `npu_smi` or `simulated`, with a file or server model behind a colon."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.drivers.base import Driver
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.dcmi.library import find
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.drivers.tools.command import Runner
from belay.agents.drivers.tools.driver import SmiDriver

DRIVERS: Final = ("dcmi", "npu_smi", "simulated")
DEFAULT_MODEL: Final = "atlas-800t-a2"
"""Server model of a simulated node that names none."""


def make_driver(name: str, node_name: str, *, scale: float = 1.0, cards_timeout: float = 600.0) -> Driver:
    """Return the driver of that name.

    ``simulated:atlas-300i-pro``; ``dcmi:/path/libdcmi.so`` where the loader does not find it; ``npu_smi:/path/npu-smi``
    where it is not on PATH. Raises ValueError, and DriverError when there is no library.

    Args:
        scale: factor on the times of a simulated node.
        cards_timeout: how long the library may take to show cards, in seconds.
    """
    kind, _, where = name.partition(":")
    if kind not in DRIVERS:
        raise ValueError(f"driver {kind!r} is unknown; use one of {', '.join(DRIVERS)}")
    if kind == "dcmi":
        library = Path(where) if where else find(os.environ.get("LD_LIBRARY_PATH", ""))
        # the agent's user may own the library too; other users may not write it
        mine = frozenset({os.getuid()})
        return DcmiDriver(library, sleep=asyncio.sleep, owners=mine, cards_timeout=cards_timeout)
    if kind == "npu_smi":
        return SmiDriver(Runner(where) if where else None)

    clock = Clock()
    return SimulatedDriver(node_name, server_model(where), scale=scale, now_ms=clock.now_ms, sleep=clock.sleep)


def server_model(name: str) -> ServerModel:
    """Return the server model of that name, the default one for an empty name. Raises ValueError for another."""
    model = name or DEFAULT_MODEL
    if model not in SERVER_MODELS:
        raise ValueError(f"server model {model!r} is unknown; use one of {', '.join(sorted(SERVER_MODELS))}")
    return SERVER_MODELS[model]

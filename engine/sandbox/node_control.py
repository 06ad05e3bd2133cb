"""A simulated node and the faults that an operator or a scenario injects into it."""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.sandbox.nodes_shape import Shape
from belay.engine.workloads.writes import Json

CONTROL_KEY: Final = "node.json"


class SandboxNode(msgspec.Struct, frozen=True):
    """One simulated node; ``index`` counts over all nodes and gives it its addresses."""

    name: str
    index: int
    shape: Shape


class Control(msgspec.Struct, frozen=True):
    """Injected state of a node: ConfigMap ``belay-sim-<node>``, key ``node.json``.

    ``ready`` false: the container runtime is down. ``paused`` true: the kubelet is silent, as if killed.
    """

    ready: bool = True
    paused: bool = False


def parse_control(config_map: Json) -> Control:
    """Read the ConfigMap of a node. Raises ValueError when it is not valid."""
    text = (config_map.get("data") or {}).get(CONTROL_KEY, "{}")
    try:
        return msgspec.json.decode(text, type=Control)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{CONTROL_KEY}: {error}") from error

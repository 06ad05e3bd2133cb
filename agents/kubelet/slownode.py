"""Settings of the degradation diagnosis, passed to containers as variables (``-enableSlowNode``).

Source: component/ascend-device-plugin/pkg/server/plugin.go: ConfigMap ``kube-system/steptime-dtpgroup``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from agents.node.client import ApiError
from agents.node.clock import Clock
from agents.node.log import Log

MAP: Final = ("kube-system", "steptime-dtpgroup")
KEYS: Final = ("PERF_DUMP_PATH", "PERF_DUMP_CONFIG")
SECONDS: Final = 30.0
_log = Log("slow node")


class Cluster(Protocol):
    """The diagnosis's access to the API server."""

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap."""
        ...


class SlowNode:
    """Reader of the diagnosis's settings; ``settings`` holds the last ones read."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self.settings: dict[str, str] = {}

    async def follow(self) -> None:
        """Read the settings periodically. Never returns."""
        while True:
            try:
                body = await self._cluster.get_config_map(*MAP)
                data = (body or {}).get("data") or {}
                self.settings = {key: str(data[key]) for key in KEYS if data.get(key)}
            except ApiError as error:
                _log.warning("settings of the degradation diagnosis cannot be read", error=error)
            await self._clock.sleep(SECONDS)


__all__ = ["SlowNode"]

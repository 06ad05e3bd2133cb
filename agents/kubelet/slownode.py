"""Settings of the degradation diagnosis, passed to containers as variables (``-enableSlowNode``).

Source: component/ascend-device-plugin/pkg/server/plugin.go: ConfigMap ``kube-system/steptime-dtpgroup``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

from belay.agents.common.log import Log

MAP: Final = ("kube-system", "steptime-dtpgroup")
KEYS: Final = {"PerfDumpPath": "PERF_DUMP_PATH", "PerfDumpConfig": "PERF_DUMP_CONFIG"}
"""Field of the JSON → variable (docs/zh/scheduling/06_api/02_ascend_device_plugin.md, ``steptime-dtpgroup``)."""
_log = Log("slow node")


class Cluster(Protocol):
    """The diagnosis's access to the API server."""

    def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap: as it is now, then after every change; None if there is none."""
        ...


def settings_of(data: Mapping[str, Any]) -> dict[str, str]:
    """The variables in the ConfigMap's data.

    Under any key it holds JSON, ``{"data": {"PerfDumpPath": …, "PerfDumpConfig": …}}``; of several keys the last by
    name counts. Keys that are the variables themselves are read too.
    """
    found = {variable: str(data[variable]) for variable in KEYS.values() if data.get(variable)}
    for key in sorted(data):
        if key in KEYS.values():
            continue
        try:
            given = json.loads(data[key])["data"]
            found |= {KEYS[name]: given[name] for name in KEYS if isinstance(given.get(name), str) and given[name]}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            _log.warning(
                "settings of the degradation diagnosis are not JSON with data.PerfDumpPath and data.PerfDumpConfig",
                where="/".join(MAP), key=key[:80],
            )  # fmt: skip
    return found


class SlowNode:
    """Reader of the diagnosis's settings; ``settings`` holds the newest ones.

    They are watched: people write them just before they start the job that is to have them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.settings: dict[str, str] = {}

    async def follow(self) -> None:
        """Watch the settings. Never returns."""
        async for body in self._cluster.config_map(*MAP):
            self.settings = settings_of((body or {}).get("data") or {})

"""Temperatures of the host's thermal zones (Linux, /sys/class/thermal) as a metric of ``belay exporter``."""

from __future__ import annotations

import os
from pathlib import Path

from belay.agents.exporter.collectors import CustomMetric

MOST_ZONES = 64


class HostSensors:
    """The collector; the exporter makes one and calls ``collect`` in every interval."""

    def __init__(self) -> None:
        self._folder = Path(os.environ.get("HOST_SENSORS", "/sys/class/thermal"))

    def supported(self, machine: object) -> bool:
        """Whether this host has thermal zones."""
        return self._folder.is_dir()

    def collect(self) -> list[CustomMetric]:
        """One row a zone, in degrees Celsius; zones that cannot be read are left out."""
        rows = []
        for zone in sorted(self._folder.glob("thermal_zone*"))[:MOST_ZONES]:
            try:
                kind, value = (zone / "type").read_text().strip(), int((zone / "temp").read_text())
            except (OSError, ValueError):
                continue
            rows.append(({"zone": zone.name, "type": kind}, value / 1000))
        return (
            [CustomMetric("host_sensor_celsius", "Temperature of a thermal zone of the host", tuple(rows))]
            if rows
            else []
        )

"""Influx line protocol for Telegraf's execd (component/npu-exporter/platforms/inputs/npu).

Fields with equal measurement and tags are one line; the first value of a field counts. Chips are tagged by logic id,
those of group ``ub`` by physical id. Whole numbers keep that type (``8i``): a field whose type changed would be refused
by the database that MindCluster's exporter filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from belay.agents.exporter.chips import Machine
from belay.agents.exporter.page import machine_counts
from belay.agents.exporter.samples import NODE, Sample, Value
from belay.agents.exporter.table import BY_NAME
from belay.agents.exporter.textfiles import TextMetric

MEASUREMENT: Final = "ascend"
_MEASUREMENT = str.maketrans({",": r"\,", " ": r"\ ", "\n": " "})
_TAG = str.maketrans({",": r"\,", " ": r"\ ", "=": r"\=", "\n": " "})
#: The largest whole number of the protocol; counters of 64 bits without a sign may be larger.
_MOST: Final = (1 << 63) - 1
_TEXT = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": " "})

Tags = tuple[tuple[str, str], ...]


class Lines:
    """Collects fields by measurement, tags and time."""

    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms
        self._fields: dict[tuple[str, Tags, int], dict[str, str]] = {}

    def add(
        self, tags: Tags, name: str, value: int | float | str, *, measurement: str = MEASUREMENT, at: int = 0
    ) -> None:
        """One field; empty text is not sent, and an ``int`` stays a whole number."""
        if value == "":
            return
        fields = self._fields.setdefault((measurement, tags, at or self._time_ms), {})
        fields.setdefault(name, _field(value))

    def text(self) -> str:
        """The lines, each ended by a newline."""
        found = []
        for (measurement, tags, at), fields in self._fields.items():
            head = ",".join((measurement.translate(_MEASUREMENT), *(f"{k}={v.translate(_TAG)}" for k, v in tags if v)))
            body = ",".join(f"{name.translate(_TAG)}={value}" for name, value in fields.items())
            found.append(f"{head} {body} {at * 1_000_000}\n")
        return "".join(found)


def lines(
    machine: Machine, samples: Mapping[str, Mapping[int, Sample]], text_metrics: Iterable[TextMetric], time_ms: int
) -> str:
    """All current values; ``samples`` by group and chip."""
    found = Lines(time_ms)
    node: Tags = (("device", machine.kind),)
    for group, chips in samples.items():
        for value in chips[NODE].values if NODE in chips else ():
            if value.metric == "node_base_info":
                found.add((("exporterVersion", value.extra[0]), ("driverVersion", value.extra[1])), value.metric, 1)
            else:
                _add(found, node, value)
        if group == "npu":
            for name, count in machine_counts(machine, chips).items():
                found.add(node, name, count)
        for chip in machine.chips:
            number = chip.phy if group == "ub" else chip.logic
            tags: Tags = (("device", f"{machine.kind}-{number}"),)
            if chip.phy not in chips:
                continue
            for value in chips[chip.phy].values:
                _add(found, tags, value)
            if group == "vnpu":
                for vnpu in chip.vnpus:
                    if vnpu.valid:
                        own: Tags = (*tags, ("vdev_id", str(vnpu.id)))
                        found.add(own, "vnpu_pod_aicore_utilization", int(vnpu.rate))
                        found.add(own, "vnpu_pod_total_memory", int(vnpu.total))
                        found.add(own, "vnpu_pod_used_memory", int(vnpu.used))
    for metric in text_metrics:
        for values, number_ in metric.rows:
            pairs = tuple(zip(metric.labels, values, strict=True))
            found.add(pairs, metric.name, float(number_), measurement=metric.path, at=metric.time_ms)
    return found.text()


def _add(found: Lines, tags: Tags, value: Value) -> None:
    row = BY_NAME[value.metric]
    if row.telegraf not in ("device", "node"):
        return
    # a chip without processes has one whole 0, the memory of a process is a float
    whole = row.whole or (value.metric == "npu_chip_info_process_info" and not value.suffix)
    number = int(value.value) if whole else float(value.value)
    found.add(tags, value.metric + value.suffix, value.text.strip() or number)


def _field(value: float | str) -> str:
    if isinstance(value, str):
        return f'"{value.translate(_TEXT)}"'
    if isinstance(value, int):
        return f"{min(value, _MOST)}i"
    return str(int(value)) if value == int(value) else repr(value)

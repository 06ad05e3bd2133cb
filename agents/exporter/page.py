"""The page that Prometheus reads: text exposition, rendered once for each change, kept as bytes.

Every group is a block of lines per metric; a scrape joins blocks that are already there. Labels are sorted by name, as
the Go client writes them (component/npu-exporter/collector/testdata).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from belay.agents.exporter.chips import Machine
from belay.agents.exporter.entries import Containers, Entry, entries
from belay.agents.exporter.groups import CARD_MAINBOARDS, TEXT
from belay.agents.exporter.samples import NODE, Cache, Sample, Value
from belay.agents.exporter.table import BY_NAME, LABELS
from belay.agents.exporter.textfiles import TextMetric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_GZIP: Final = 16 + zlib.MAX_WBITS
_FASTEST: Final = 1
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Blocks = Mapping[str, str]


class Page:
    """What is shown now. ``now`` is a monotonic clock in seconds; ``legacy`` adds names with die and port."""

    def __init__(self, cache: Cache, now: Callable[[], float], *, legacy: bool = False) -> None:
        self._cache, self._now, self._legacy = cache, now, legacy
        self._machine: Machine | None = None
        self._entries: dict[int, list[Entry]] = {}
        self._texts: dict[tuple[int, str, tuple[str, ...]], str] = {}
        self._epoch = 0
        self._blocks: dict[str, tuple[tuple[int, int], float, Blocks]] = {}
        self.text_metrics: tuple[TextMetric, ...] = ()
        self._plain, self._zipped = b"", b""
        self._made: tuple[object, ...] = ()
        self._until = 0.0
        self.renders = 0  # how often the page was composed; tests count it

    def show(self, machine: Machine, containers: Containers) -> None:
        """Set the chips and containers that are shown."""
        found: dict[int, list[Entry]] = {}
        for entry in entries(machine, containers):
            found.setdefault(entry.chip.phy, []).append(entry)
        if machine == self._machine and found == self._entries:
            return
        self._machine, self._entries = machine, found
        self._texts.clear()
        self._epoch += 1

    def show_text(self, metrics: Iterable[TextMetric]) -> None:
        """Show the metrics of text files."""
        self.text_metrics = tuple(metrics)
        self._epoch += 1

    def plain(self) -> bytes:
        """Return the page as uncompressed bytes."""
        self._compose()
        return self._plain

    def zipped(self) -> bytes:
        """The page, compressed with gzip."""
        self._compose()
        if not self._zipped:
            packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP)
            self._zipped = packer.compress(self._plain) + packer.flush()
        return self._zipped

    def _compose(self) -> None:
        now = self._now()
        made = (self._epoch, *sorted(self._cache.changes.items()))
        if made == self._made and now < self._until:
            return
        parts: dict[str, list[str]] = {}
        until = float("inf")
        for group in list(self._cache.groups()):
            blocks, end = self._group(group, now)
            until = min(until, end)
            for name, lines in blocks.items():
                parts.setdefault(name, []).append(lines)
        text = "".join(
            f"# HELP {name} {self._help(name)}\n# TYPE {name} gauge\n{''.join(lines)}"
            for name, lines in sorted(parts.items())
        )
        self._plain, self._zipped = text.encode(), b""
        self._made, self._until = made, until
        self.renders += 1

    def _help(self, name: str) -> str:
        if name in BY_NAME:
            text = BY_NAME[name].help
        else:
            text = next((metric.desc for metric in self.text_metrics if metric.name == name), "")
            # a legacy name is the metric's, die and port appended
            text = text or BY_NAME[name.rsplit("_", 2)[0]].help
        return text.replace("\\", "\\\\").replace("\n", "\\n")

    def _group(self, group: str, now: float) -> tuple[Blocks, float]:
        key = (self._cache.changes.get(group, 0), self._epoch)
        if group in self._blocks:
            made, end, blocks = self._blocks[group]
            if made == key and now < end:
                return blocks, end
        samples = self._cache.of(group, now)
        blocks = self._text_blocks() if group == TEXT else self._rendered(group, samples)
        end = self._cache.oldest(group, now)
        self._blocks[group] = (key, end, blocks)
        return blocks, end

    def _rendered(self, group: str, samples: Mapping[int, Sample]) -> Blocks:
        lines: dict[str, list[str]] = {}
        for phy, sample in sorted(samples.items()):
            if phy == NODE:
                for value in sample.values:
                    self._line(lines, value.metric, value.extra, value.value, sample.time_ms)
                continue
            for number, entry in enumerate(self._entries.get(phy, ())):
                self._entry(lines, phy * 64 + number, entry, sample)
                if group == "npu":
                    self._container(lines, entry, sample)
                if group == "vnpu":
                    self._vnpu(lines, entry, sample)
        if group == "npu" and self._machine is not None:
            self._counts(lines, self._machine, samples)
        return {name: "".join(found) for name, found in lines.items()}

    def _entry(self, lines: dict[str, list[str]], number: int, entry: Entry, sample: Sample) -> None:
        ending = f" {sample.time_ms}\n"
        for value in sample.values:
            name = value.metric
            if name.startswith("container_npu_") and (entry.sole is None or not entry.whole):
                continue
            if name == "npu_chip_info_process_info" and value.extra == ("",):
                continue  # no process: only Telegraf has a value for that
            if name == "npu_chip_info_error_code":
                # one sample per code: the second has the first's name and its number
                name += value.suffix
                if name not in BY_NAME:
                    continue
            metric = BY_NAME[name]
            labels = metric.labels
            if labels == "card|card_port":
                labels = "card_port" if value.extra else "card"
            key = (number, labels, value.extra)
            text = self._texts.get(key)
            if text is None:
                text = self._texts[key] = _labels(LABELS[labels], self._card_values(labels, entry, value))
            lines.setdefault(name, []).append(f"{name}{{{text}}} {_number(value.value)}{ending}")
            if self._legacy and labels == "card_port" and self._old_names():
                old = f"{name}_{value.extra[0]}_{value.extra[1]}"
                text = _labels(LABELS["card"], entry.card())
                lines.setdefault(old, []).append(f"{old}{{{text}}} {_number(value.value)}{ending}")

    def _old_names(self) -> bool:
        return self._machine is not None and self._machine.mainboard in CARD_MAINBOARDS

    @staticmethod
    def _card_values(labels: str, entry: Entry, value: Value) -> tuple[str, ...]:
        if labels == "process":
            return entry.process(value.extra[0])
        return (*entry.card(), *value.extra)

    def _container(self, lines: dict[str, list[str]], entry: Entry, sample: Sample) -> None:
        if (sole := entry.sole) is not None:
            values = (*entry.card(), sole.id, sole.name)
            text = _labels(LABELS["container"], values)
            lines.setdefault("npu_container_info", []).append(f"npu_container_info{{{text}}} 1 {sample.time_ms}\n")

    def _vnpu(self, lines: dict[str, list[str]], entry: Entry, sample: Sample) -> None:
        vnpu = entry.vnpu
        if vnpu is None or not vnpu.valid or len(entry.containers) != 1:
            return
        chip = entry.chip
        values = (str(chip.phy), chip.model, str(vnpu.id), f"{vnpu.cores:.2f}", *entry.pod(), "true")
        text = _labels(LABELS["vnpu"], values)
        for name, number in (
            ("vnpu_pod_aicore_utilization", vnpu.rate), ("vnpu_pod_total_memory", vnpu.total),
            ("vnpu_pod_used_memory", vnpu.used),
        ):  # fmt: skip
            lines.setdefault(name, []).append(f"{name}{{{text}}} {_number(number)} {sample.time_ms}\n")

    def _counts(self, lines: dict[str, list[str]], machine: Machine, samples: Mapping[int, Sample]) -> None:
        for name, count in machine_counts(machine, samples).items():
            lines[name] = [f"{name} {count}\n"]

    def _line(
        self, lines: dict[str, list[str]], name: str, values: tuple[str, ...], value: float, time_ms: int
    ) -> None:
        metric = BY_NAME[name]
        text = _labels(LABELS[metric.labels], values)
        ending = f" {time_ms}\n" if metric.timestamped else "\n"
        lines.setdefault(name, []).append(f"{name}{{{text}}} {_number(value)}{ending}")

    def _text_blocks(self) -> Blocks:
        found: dict[str, list[str]] = {}
        for metric in self.text_metrics:
            for values, value in metric.rows:
                text = _labels(metric.labels, values)
                braces = f"{{{text}}}" if text else ""
                found.setdefault(metric.name, []).append(f"{metric.name}{braces} {_number(value)} {metric.time_ms}\n")
        return {name: "".join(lines) for name, lines in found.items()}


def machine_counts(machine: Machine, samples: Mapping[int, Sample]) -> dict[str, int]:
    """The node's counts; chips by health add up to their number, a vNPU counting as a chip."""
    by_health = {1: 0, 0: 0, -1: 0}
    for chip in machine.chips:
        sample = samples.get(chip.phy)
        health = -1
        for value in sample.values if sample else ():
            if value.metric == "npu_chip_info_health_status":
                health = int(value.value)
        by_health[health if health in by_health else -1] += max(1, len(chip.vnpus))
    counts = {
        "machine_npu_nums": sum(by_health.values()),
        "machine_healthy_npu_nums": by_health[1],
        "machine_unhealthy_npu_nums": by_health[0],
        "machine_unknown_npu_nums": by_health[-1],
    }
    if machine.family in BY_NAME["machine_card_nums"].families:
        counts["machine_card_nums"] = machine.cards
    return counts


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(zip(names, values, strict=True))
    )  # fmt: skip


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))

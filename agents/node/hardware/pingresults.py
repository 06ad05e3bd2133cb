"""Results of pings: a log for people, a table for the slow-network analysis.

Formats: component/noded/pkg/pingmesh/resulthandler/filewriter.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.common.logfile import LogFile
from belay.agents.node.hardware.pinglist import Config, Target, Tasks, address

COLUMNS: Final = (
    "pingTaskId", "srcType", "srcAddr", "dstType", "dstAddr", "minDelay", "maxDelay", "avgDelay", "minLossRate",
    "maxLossRate", "avgLossRate", "timestamp",
)  # fmt: skip
#: A new table is begun when the last one is this old (ms).
FRESH_MS: Final = 45_000
MAX_LINE: Final = 2047
BACKUPS: Final = 30

Results = Mapping[int, Mapping[int, Sequence[Mapping[str, Any]]]]
"""Chip → task → results, one for each destination, as the driver gives them."""


class PingFiles:
    """Writes both. ``folder`` of the table is None if there is no shared folder."""

    def __init__(self, log: Path, folder: Path | None, server_index: int | str, days: int) -> None:
        self._log, self._folder, self._index, self._days = log, folder, server_index, days
        self._handler: LogFile | None = None
        self._begun_ms: int | None = None

    def write(self, uid: str, chosen: Config, tasks: Tasks, results: Results, now_ms: int) -> None:
        """Add a round. Raises OSError, ValueError."""
        self._say(f"uid: {uid}, config: activate {'on' if chosen.active else 'off'}, task_interval {chosen.interval}")
        rows = []
        for chip, by_task in sorted(results.items()):
            for task, found in sorted(by_task.items()):
                self._say(f"physicID: {chip}, taskID: {task}, DestNum: {len(found)}")
                for _, _, target, one in matched(tasks, {chip: {task: found}}):
                    self._say(json.dumps(_record(target, one), separators=(",", ":")))
                    rows.append(_row(task, target, one, now_ms))
        if self._folder is not None:
            self._table(rows, now_ms)

    def _say(self, line: str) -> None:
        if self._handler is None:
            self._handler = LogFile(self._log, backups=BACKUPS, days=self._days)
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._handler.emit(logging.LogRecord("pings", logging.INFO, "", 0, line[:MAX_LINE], None, None))

    def _table(self, rows: Sequence[Sequence[object]], now_ms: int) -> None:
        assert self._folder is not None
        file = self._folder / f"ping_result_{self._index}.csv"
        fresh = self._begun_ms is None or now_ms - self._begun_ms >= FRESH_MS
        if fresh:
            with contextlib.suppress(FileNotFoundError):
                os.replace(file, file.with_name(f"{file.name}-bak"))
            self._begun_ms = now_ms
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(file, flags, 0o644), "a", encoding="utf-8", newline="") as out:
            os.fchmod(out.fileno(), 0o644)
            writer = csv.writer(out, lineterminator="\n")
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows(rows)

    def close(self) -> None:
        """Let go of the log."""
        if self._handler is not None:
            self._handler.close()
            self._handler = None


def matched(tasks: Tasks, results: Results) -> Iterator[tuple[int, int, Target, Mapping[str, Any]]]:
    """Chip, task, destination and result, for each result that was asked for."""
    for chip, by_task in sorted(results.items()):
        for task, found in sorted(by_task.items()):
            targets: dict[tuple[str, str], Target] = {}
            for each in tasks.get(chip, {}).get(task, ()):
                targets["", address(each.dst)] = each
                targets[each.src.lower(), each.dst.lower()] = each
            for one in found:
                target = targets.get((one.get("source", ""), one["target"]))
                if target is not None:
                    yield chip, task, target, one


def loss(ok: int, lost: int) -> str:
    """The share of lost packets with three decimals."""
    return f"{lost / (ok + lost) if ok + lost else 0.0:.3f}"


def _record(target: Target, one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source_addr": address(target.src), "target_addr": one["target"], "suc_pkt_num": one["ok"],
        "fail_pkt_num": one["lost"], "max_time": one["max"], "min_time": one["min"], "avg_time": one["average"],
        "tp95_time": one["tp95"], "reply_stat_num": one["replies"], "ping_total_num": one["total"],
    }  # fmt: skip


def _row(task: int, target: Target, one: Mapping[str, Any], now_ms: int) -> list[object]:
    rate = loss(one["ok"], one["lost"])
    return [
        task, target.src_type, target.src, target.dst_type, target.dst, one["min"], one["max"], one["average"], rate,
        rate, rate, now_ms,
    ]  # fmt: skip

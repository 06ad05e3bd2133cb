"""Jobs, their recoveries and the fleet's figures, from the ``belay-job-*`` ConfigMaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.model.times import parse_rfc3339
from belay.engine.serve.console.layout import Layout
from belay.engine.serve.console.texts import decoded, line, mapping, name, number, numbers, words
from belay.engine.wire import history, names

MOST_RECOVERIES: Final = 10
"""Recoveries shown per job: the newest."""
MOST_NODES: Final = 64
"""Nodes shown of a way out: the nearest."""
_ENDED: Final = ("Finished",)


class ReadJob(NamedTuple):
    """One job: its row, the chips of each of its pods as (node, chip ids), its recoveries as rows, chip-seconds lost
    and their begin.
    """

    data: Mapping[str, str]
    key: str
    row: dict[str, Any]
    chips: tuple[tuple[str, tuple[int, ...]], ...]
    recoveries: tuple[dict[str, Any], ...]
    lost: float
    since: float


class JobSlots:
    """The jobs, each at a place in the list that it keeps, so that chips can name it by number.

    A job that is gone leaves None in its place. Beyond as many empty places as there are jobs the list is made new.
    """

    def __init__(self) -> None:
        self._known: dict[str, ReadJob] = {}
        self._slots: dict[str, int] = {}
        self.rows: list[dict[str, Any] | None] = []
        self._chips: tuple[Layout, list[int]] | None = None

    def read(self, found: Mapping[str, Mapping[str, str]], layout: Layout) -> JobSlots:
        """Take the ConfigMaps of the jobs in force; returns itself."""
        changed = self._known.keys() != found.keys()
        jobs = {}
        for key, data in found.items():
            known = self._known.get(key)
            if known is None or (known.data is not data and known.data != data):
                known, changed = _read(key, data), True
            jobs[key] = known
        self._known = jobs
        if changed or self._chips is None or not self._chips[0].same_places(layout):
            self._place()
            self._chips = (layout, self._spread(layout))
        return self

    @property
    def jobs(self) -> list[ReadJob]:
        """The jobs by name."""
        return list(self._known.values())

    def of_chips(self, layout: Layout) -> list[int]:
        """The place of the job that uses each chip; -1 for none."""
        assert self._chips is not None and self._chips[0].same_places(layout)
        return self._chips[1]

    def _place(self) -> None:
        if len(self._slots) > 2 * len(self._known) + 64:
            self._slots = {}
        for key in self._known:
            self._slots.setdefault(key, len(self._slots))
        rows: list[dict[str, Any] | None] = [None] * len(self._slots)
        for key, job in self._known.items():
            rows[self._slots[key]] = job.row
        self.rows = rows

    def _spread(self, layout: Layout) -> list[int]:
        column = [-1] * layout.chips
        for key, job in self._known.items():
            slot = self._slots[key]
            for node, ids in job.chips:
                for at in layout.places(node, ids):
                    column[at] = slot
        return column


def _read(config_map: str, data: Mapping[str, str]) -> ReadJob:
    status = mapping(decoded(data.get(history.JOB_STATUS_KEY)))
    key = str(data.get(history.JOB_NAME_KEY) or config_map.removeprefix(names.JOB_PREFIX))
    namespace, _, rest = key.partition("/")
    kind, _, own = rest.rpartition("/")
    placement = mapping(status.get("placement"))
    chips, placed, running = [], 0, 0
    for pod in placement.values():
        where = mapping(pod)
        node = where.get("node")
        if not isinstance(node, str):
            continue
        placed += 1
        running += where.get("phase") == "Running"
        if where.get("phase") in ("Succeeded", "Failed"):
            continue
        if isinstance(where.get("chips"), list):
            chips.append((node, _chip_ids(where["chips"])))
    pending = mapping(status.get("pending"))
    requests = numbers(status.get("requests"))
    row = {
        "kind": name(kind),
        "namespace": name(namespace),
        "name": name(own),
        "queue": name(status.get("queue")),
        "phase": line(data.get(history.JOB_PHASE_KEY) or "Unknown", 32),
        "pods": {"wanted": number(status.get("wanted")) or len(placement), "placed": placed, "running": running},
        "chips": _whole(sum(requests.values())) or _distinct(chips),
        "reason": line(pending.get("reason"), 120),
        "message": line(pending.get("message")),
        "wayOut": line(pending.get("unblock")),
        "wayOutNodes": _nodes(pending.get("near")),
        "nodes": dict(list(numbers(pending.get("nodes")).items())[:32]),
        "since": line(status.get("since"), 40) or None,
        "resources": requests,
        "health": line(mapping(status.get("impact")).get("state"), 40),
    }
    told = status.get("recoveries")
    recoveries = [mapping(one) for one in told] if isinstance(told, list) else []
    spent = mapping(status.get("lost"))
    lost = sum(number(mapping(one).get("chipSeconds")) or 0 for one in spent.values())
    first_number = len(recoveries) - min(len(recoveries), MOST_RECOVERIES) + 1
    shown = tuple(_recovery(key, at, one, status) for at, one in enumerate(recoveries[-MOST_RECOVERIES:], first_number))
    return ReadJob(data, key, row, tuple(chips), shown, lost, _seconds(row["since"]))


def _chip_ids(listed: list[Any]) -> tuple[int, ...]:
    """The numbers of chips by their names; a part is named Ascend910-2c-100-3, where the chip is the last number."""
    texts = [str(chip).rpartition("-")[2] for chip in listed]
    return tuple([int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 4])


def _distinct(chips: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    """How many chips there are: several pods may hold parts of one."""
    by_node: dict[str, set[int]] = {}
    for node, ids in chips:
        by_node.setdefault(node, set()).update(ids)
    return sum(map(len, by_node.values()))


def _nodes(listed: Any) -> list[str]:
    """Names of nodes, the first of them."""
    return [name(one) for one in listed[:MOST_NODES] if isinstance(one, str)] if isinstance(listed, list) else []


def _recovery(key: str, attempt: int, one: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    codes = words(one.get("codes"))
    actual, lost = mapping(one.get("actual")), mapping(one.get("lost"))
    allowed, left = number(status.get("retries")), number(status.get("retriesLeft"))
    budget = None
    if allowed:
        left = allowed if left is None else left
        budget = {"spent": max(0, allowed - left), "left": left, "window": None}
    return {
        "job": line(key, 600),
        "attempt": attempt,
        "cause": line(one.get("reason"), 120),
        "code": codes[0] if codes else "",
        "codes": codes,
        "level": line(one.get("level"), 40),
        "stages": [
            {"stage": line(stage.get("stage"), 40), "time": line(stage.get("time"), 40)}
            for stage in map(mapping, one["stages"] if isinstance(one.get("stages"), list) else ())
        ][:16],
        "steps": [
            {
                "time": line(step.get("time"), 40), "after": number(step.get("after")) or 0,
                "event": line(step.get("event"), 120), "state": line(step.get("state"), 64),
                "code": number(step.get("code")) or 0,
            }
            for step in map(mapping, one["steps"] if isinstance(one.get("steps"), list) else ())
        ][:64],
        "seconds": _taken(actual, one["stages"] if isinstance(one.get("stages"), list) else ()),
        "lostChipSeconds": number(lost.get("chipSeconds")),
        "chips": number(one.get("chips")) or 0,
        "budget": budget,
    }  # fmt: skip


def _taken(actual: Mapping[str, Any], stages: Sequence[Any]) -> float | None:
    """Seconds of an ended recovery: the status says whole ones, its stages what lies behind the point."""
    whole = number(actual.get("seconds"))
    times = [_seconds(mapping(stage).get("time")) for stage in stages]
    span = max(times) - min(times) if times and all(times) else 0.0
    return round(span, 3) if whole is not None and 0 <= span - whole < 1 else whole


def recoveries(jobs: JobSlots) -> list[dict[str, Any]]:
    """Every recovery, newest first."""
    found = [row for job in jobs.jobs for row in job.recoveries]
    return sorted(found, key=lambda row: row["stages"][0]["time"] if row["stages"] else "", reverse=True)


def fleet(recoveries: Sequence[Mapping[str, Any]], jobs: JobSlots, now: float) -> dict[str, Any]:
    """How long recoveries took, by cause; their mean; and the share of time in which training progressed: a recovery
    under way counts with the time that it has taken so far."""
    by_cause: dict[str, list[float]] = {}
    for row in recoveries:
        if row["seconds"] is not None:
            by_cause.setdefault(row["code"] or row["cause"], []).append(float(row["seconds"]))
    every = [seconds for listed in by_cause.values() for seconds in listed]
    held = sum(job.row["chips"] * max(0.0, now - job.since) for job in jobs.jobs if _counts(job))
    lost = sum(job.lost + _lost_so_far(job, now) for job in jobs.jobs if _counts(job))
    rows = [
        {"cause": cause, "p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "count": len(times)}
        for cause, times in sorted(by_cause.items(), key=lambda item: (-len(item[1]), item[0]))[:100]
    ]
    return {
        "perCause": rows,
        "mttr": round(sum(every) / len(every), 1) if every else None,
        "effectiveTime": round(max(0.0, 1 - lost / held), 4) if held else None,
    }


def _lost_so_far(job: ReadJob, now: float) -> float:
    """Chip-seconds that the job's open recovery has cost."""
    last = job.recoveries[-1]
    begin = _seconds(last["stages"][0]["time"]) if last["stages"] else 0.0
    return last["chips"] * max(0.0, now - begin) if last["seconds"] is None and begin else 0.0


def _counts(job: ReadJob) -> bool:
    return bool(job.recoveries) and job.since > 0 and job.row["phase"] not in _ENDED


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _seconds(text: object) -> float:
    try:
        return parse_rfc3339(text) if isinstance(text, str) and text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _whole(value: float) -> int:
    """A number as a whole one; 0 for one that is too large to be one."""
    return int(value) if math.isfinite(value) else 0

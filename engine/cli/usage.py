"""Answers of `belay top`: nodes, chips and jobs by how much they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from belay.engine.cli.counted_chips import CountedChips
from belay.engine.cli.selection import Answer

if TYPE_CHECKING:
    from belay.engine.cli.measurements import Measured, Reading

_MEASURED: Final = ("utilization", "hbm", "power", "temperature")
#: The column by which an answer is sorted where the user names none: the first that it has.
ORDER: Final = {"nodes": ("utilization", "use"), "chips": ("utilization", "usedBy"), "jobs": ("chips",)}
#: Columns whose small values come first.
ASCENDING: Final = frozenset({"node", "chip", "pool", "state", "namespace", "name", "phase", "usedBy"})


class UsedCluster(Protocol):
    """A cluster as it was published, or planned."""

    @property
    def chip_uses(self) -> dict[str, CountedChips]: ...

    @property
    def job_of(self) -> dict[str, str]: ...

    def answer(self, what: str) -> Answer: ...


def nodes(cluster: UsedCluster, readings: Measured) -> Answer:
    """Nodes with their chips: in use, free, and out of service; ``use`` is the part in use, in percent.

    Chips of a node that takes no work are not free; a chip out of service may be in use.
    """
    rows, uses, chips_of = [], cluster.chip_uses, _chips_of(cluster) if readings else {}
    for node in cluster.answer("nodes").rows:
        name = node["node"]
        use = uses[name]
        row: dict[str, Any] = {
            "node": name,
            "pool": node["pool"],
            "state": f"{node['state']},cordoned" if node["cordoned"] else node["state"],
            "chips": use.chips,
            "used": use.used,
            "free": use.free,
            "out": use.out,
            "use": round(100 * use.used / use.chips) if use.chips else 0,
        }
        rows.append(row | _summed(readings.get((name, chip)) for chip in chips_of.get(name, ())))
    return _answer(("node", "pool", "state", "chips", "used", "free", "out", "use"), rows, readings)


def chips(cluster: UsedCluster, readings: Measured) -> Answer:
    """Chips with who uses them, and what they measure."""
    rows = []
    for row in cluster.answer("chips").rows:
        shown = {key: row[key] for key in ("node", "chip", "state", "usedBy")}
        rows.append(shown | _summed([readings.get((row["node"], _number(row["chip"])))]))
    return _answer(("node", "chip", "state", "usedBy"), rows, readings)


def job_rows(cluster: UsedCluster, readings: Measured) -> Answer:
    """Jobs with their chips, and what these measure."""
    of_job: dict[str, list[Reading | None]] = {}
    job_of = cluster.job_of if readings else {}
    for row in cluster.answer("chips").rows if readings else ():
        job = job_of.get(row["usedBy"] or "")
        if job is not None:
            of_job.setdefault(job, []).append(readings.get((row["node"], _number(row["chip"]))))

    rows = []
    for row in cluster.answer("jobs").rows:
        key = f"{row['namespace']}/{row['kind']}/{row['name']}"
        kept = {name: row[name] for name in ("namespace", "name", "kind", "phase", "ready", "chips", "created")}
        rows.append({**kept, "nodes": len(row["nodes"])} | _summed(of_job.get(key, ())))
    columns = ("namespace", "name", "phase", "ready", "chips", "nodes", "created")
    answer = _answer(columns, rows, readings)
    return Answer(answer.columns, answer.rows, ("kind",))


TOP: Final = {"nodes": nodes, "chips": chips, "jobs": job_rows}


def ordered(rows: Sequence[Mapping[str, Any]], column: str, *, reverse: bool) -> list[Mapping[str, Any]]:
    """Rows by one column: the largest first, names from A; ``reverse`` turns it round. Unknown values come last."""
    known = [row for row in rows if row.get(column) not in (None, "", "-")]
    rest = [row for row in rows if row.get(column) in (None, "", "-")]
    down = (column not in ASCENDING) != reverse
    try:
        return [*sorted(known, key=lambda row: _value(row[column]), reverse=down), *rest]
    except TypeError:
        return [*sorted(known, key=lambda row: str(row[column]), reverse=down), *rest]


def headline(cluster: UsedCluster) -> list[str]:
    """The cluster in three lines."""
    states = Counter(row["state"] for row in nodes(cluster, {}).rows)
    phases = Counter(row["phase"] for row in cluster.answer("jobs").rows)
    use = sum(cluster.chip_uses.values(), CountedChips())
    share = f" ({100 * use.used / use.chips:.0f} %)" if use.chips else ""
    closed = f", {use.closed} on nodes that take no work" if use.closed else ""
    return [
        f"nodes: {_counts(states) or 'none'}",
        f"chips: {use.chips}, {use.used} in use{share}, {use.free} free, {use.out} out of service{closed}",
        f"jobs: {_counts(phases) or 'none'}",
    ]


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(numbers.items(), key=lambda item: -item[1]))


def _chips_of(cluster: UsedCluster) -> dict[str, list[int]]:
    """The numbers of the chips of each node."""
    found: dict[str, list[int]] = {}
    for row in cluster.answer("chips").rows:
        found.setdefault(row["node"], []).append(_number(row["chip"]))
    return found


def _number(chip: str) -> int:
    return int(chip.rpartition("-")[2])


def _summed(readings: Iterable[Reading | None]) -> dict[str, Any]:
    """Mean utilisation, sums of memory (GiB) and power, the highest temperature; None if nothing is known."""
    known = [one for one in readings if one is not None]
    use = [one.utilization for one in known if one.utilization is not None]
    total = sum(one.hbm_total_memory or 0 for one in known)
    used = sum(one.hbm_used_memory or 0 for one in known)
    power = [one.power for one in known if one.power is not None]
    heat = [one.temperature for one in known if one.temperature is not None]
    return {
        "utilization": round(sum(use) / len(use)) if use else None,
        "hbm": round(100 * used / total) if total else None,
        "hbmGiB": round(used / 1024, 1) if total else None,
        "power": round(sum(power)) if power else None,
        "temperature": round(max(heat)) if heat else None,
    }


def _answer(columns: tuple[str, ...], rows: list[dict[str, Any]], readings: Measured) -> Answer:
    if not readings:
        rows = [{name: value for name, value in row.items() if name not in (*_MEASURED, "hbmGiB")} for row in rows]
        return Answer(columns, rows)
    return Answer((*columns, *_MEASURED), rows, ("hbmGiB",))


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.partition("/")[0].isdecimal():
        return int(value.partition("/")[0])
    return value

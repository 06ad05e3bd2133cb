"""Answers of `belay top`: nodes, chips and jobs by how much they use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from belay.engine.cli.answers import chip_names, jobs, planned_use
from belay.engine.cli.counted_chips import CountedChips
from belay.engine.cli.measurements import Measured, Reading
from belay.engine.cli.selection import Answer
from belay.engine.gangs.grouping import group
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import ChipState, NodeState, Plan

_MEASURED: Final = ("utilization", "hbm", "power", "temperature")
#: The column by which an answer is sorted where the user names none: the first that it has.
ORDER: Final = {"nodes": ("utilization", "use"), "chips": ("utilization", "usedBy"), "jobs": ("chips",)}
#: Columns whose small values come first.
ASCENDING: Final = frozenset({"node", "chip", "pool", "state", "namespace", "name", "phase", "usedBy"})


def nodes(plan: Plan, observed: Observed, readings: Measured) -> Answer:
    """Nodes with their chips: in use, free, and out of service; ``use`` is the part in use, in percent.

    Chips of a node that takes no work are not free; a chip out of service may be in use.
    """
    rows, uses = [], planned_use(plan, observed)
    for state, ids, _ in _by_node(plan):
        use = uses[state.node]
        node = observed.nodes.get(state.node)
        row: dict[str, Any] = {
            "node": state.node,
            "pool": state.pool,
            "state": state.state if node is None or not node.unschedulable else f"{state.state},cordoned",
            "chips": use.chips,
            "used": use.used,
            "free": use.free,
            "out": use.out,
            "use": round(100 * use.used / use.chips) if use.chips else 0,
        }
        rows.append(row | _summed(readings.get((state.node, chip)) for chip in ids))
    return _answer(("node", "pool", "state", "chips", "used", "free", "out", "use"), rows, readings)


def chips(plan: Plan, _: Observed, readings: Measured) -> Answer:
    """Chips with who uses them, and what they measure."""
    rows = []
    for state, ids, known in _by_node(plan):
        for number, name in ids.items():
            found = known.get(name)
            row: dict[str, Any] = {
                "node": state.node,
                "chip": name,
                "state": found.state if found is not None else "healthy" if _reported(plan, state.node) else "unknown",
                "usedBy": found.used_by if found is not None else None,
            }
            rows.append(row | _summed([readings.get((state.node, number))]))
    return _answer(("node", "chip", "state", "usedBy"), rows, readings)


def job_rows(plan: Plan, observed: Observed, readings: Measured) -> Answer:
    """Jobs with their chips, and what these measure."""
    _, gang_of = group(observed)
    of_job: dict[str, list[Reading | None]] = {}
    for state, ids, known in _by_node(plan):
        for number, name in ids.items():
            user = known[name].used_by if name in known else None
            job = gang_of.get(user) if user else None
            if job is not None:
                of_job.setdefault(job, []).append(readings.get((state.node, number)))
    rows = []
    for row in jobs(plan, observed).rows:
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


def headline(plan: Plan, observed: Observed) -> list[str]:
    """The cluster in three lines."""
    rows = nodes(plan, observed, {}).rows
    states: dict[str, int] = {}
    for row in rows:
        states[row["state"]] = states.get(row["state"], 0) + 1
    use = sum(planned_use(plan, observed).values(), CountedChips())
    phases: dict[str, int] = {}
    for row in jobs(plan, observed).rows:
        phases[row["phase"]] = phases.get(row["phase"], 0) + 1
    share = f" ({100 * use.used / use.chips:.0f} %)" if use.chips else ""
    closed = f", {use.closed} on nodes that take no work" if use.closed else ""
    return [
        f"nodes: {_counts(states) or 'none'}",
        f"chips: {use.chips}, {use.used} in use{share}, {use.free} free, {use.out} out of service{closed}",
        f"jobs: {_counts(phases) or 'none'}",
    ]


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(numbers.items(), key=lambda item: -item[1]))


def _by_node(plan: Plan) -> Iterable[tuple[NodeState, dict[int, str], dict[str, ChipState]]]:
    """Every node with its chips by id, and what the plan says of them by name."""
    known: dict[str, dict[str, ChipState]] = {}
    for chip in plan.chips:
        known.setdefault(chip.node, {})[chip.chip] = chip
    for state in plan.nodes:
        server = plan.servers.get(state.node)
        ids = dict(zip(ids_of(server.base), chip_names(server), strict=True)) if server is not None else {}
        yield state, ids, known.get(state.node, {})


def _reported(plan: Plan, node: str) -> bool:
    server = plan.servers.get(node)
    return server is not None and server.reported


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

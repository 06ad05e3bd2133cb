"""The report of a time as text: what a platform engineer reads on Monday."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.cli import output as show
from belay.engine.cli.ages import length
from belay.engine.model.wording import counted

Rows = Sequence[Mapping[str, Any]]
_TABLES: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("by pool", "byPool", ("pool", "jobs", "chipHours", "lostChipHours", "goodput")),
    ("by queue", "byQueue", ("queue", "jobs", "chipHours", "lostChipHours", "goodput")),
    ("by user", "byUser", ("user", "jobs", "chipHours", "vnpuHours", "lostChipHours", "goodput")),
    ("lost, by cause", "lostByCause", ("cause", "recoveries", "lostChipHours")),
    ("out of service", "outOfService", ("by", "chipHours", "nodeHours")),
    ("failing again and again", "repeatOffenders", ("node", "chip", "faults", "codes", "last")),
    ("waits, by chips of the job", "waits",
     ("chips", "waits", "stillWaiting", "mean", "p50", "p90", "longest", "longestJob")),
    ("held without running", "idleHeld", ("job", "user", "chips", "state", "seconds", "chipHours", "lasts")),
)  # fmt: skip
_TIMES: Final = frozenset({"mean", "p50", "p90", "longest", "seconds"})


def show_report(body: Mapping[str, Any]) -> None:
    """Print a report; sections without rows are left out."""
    total, recoveries = body["total"], body["recoveries"]
    show.text(f"{body['since']} to {body['until']}")
    show.text(
        f"goodput {_share(total['goodput'])}: {_amount(total['chipHours'])} chip-hours held by "
        f"{counted(total['jobs'], 'job')}, {_amount(total['lostChipHours'])} lost to recoveries"
    )
    if recoveries["ended"] or recoveries["underWay"]:
        show.text(
            f"{counted(recoveries['ended'], 'recovery', 'recoveries')} ended, {recoveries['underWay']} under way; "
            f"MTTR {_time(recoveries['mttr'])} (p50 {_time(recoveries['p50'])}, p90 {_time(recoveries['p90'])}), "
            f"MTTI {_time(recoveries['mtti'])}"
        )
    for title, key, columns in _TABLES:
        rows: Rows = body[key]
        if rows:
            show.text(f"\n{title}")
            show.table(columns, [[_cell(column, row[column]) for column in columns] for row in rows])


def _cell(column: str, value: Any) -> Any:
    if column == "goodput":
        return _share(value)
    if column in _TIMES:
        return _time(value)
    return _amount(value) if isinstance(value, float) else value


def _amount(value: float) -> str:
    """With one digit; what is less than that is not shown as nothing."""
    if 0 < value < 0.1:
        return f"{value:.2f}" if value >= 0.01 else "<0.01"
    return f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else length(seconds)

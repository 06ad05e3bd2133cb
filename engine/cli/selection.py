"""Which rows of an answer are meant: their names, and those that a name given by a user fits."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.errors import InputError

Row = Mapping[str, Any]

#: Columns of jobs; a reason is long, so it comes last, with ``-o wide`` too.
JOB_COLUMNS: Final = ("namespace", "kind", "name", "phase", "queue", "priority", "ready", "chips", "nodes", "reason")
JOB_WIDE: Final = ("created",)


class Answer(msgspec.Struct, frozen=True):
    """Rows under columns; ``wide`` columns are shown only with ``-o wide``."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    wide: tuple[str, ...] = ()


#: By kind: its singular, and the columns that name a row.
NAMED_BY: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "nodes": ("node", ("node",)),
    "chips": ("chip", ("node", "chip")),
    "jobs": ("job", ("namespace", "kind", "name")),
    "faults": ("fault", ("node", "chip", "code")),
    "vnpus": ("vnpu", ("node", "chip", "id")),
    "pools": ("pool", ("pool",)),
    "links": ("link", ("link", "from", "to")),
    "queues": ("queue", ("queue",)),
    "recoveries": ("recovery", ("namespace", "kind", "name", "time")),
    "revisions": ("revision", ("revision",)),
    "pods": ("pod", ("namespace", "name")),
    "isolations": ("isolation", ("name",)),
    "budgets": ("budget", ("name",)),
    "policies": ("policy", ("name",)),
}
#: Fields that change all the time and are no news.
RESTLESS: Final = frozenset({"report", "utilization", "power", "temperature", "hbm", "hbmGiB"})
_SHORTEST_REVISION: Final = 4
_COMPARED: Final = 5000


def name_of(kind: str, row: Row) -> str:
    """``node-1``, ``node-1/Ascend910-3``, ``train/AscendJob/big``, …: unique within the kind."""
    return "/".join(_parts(kind, row))


def typed_name(kind: str, row: Row) -> str:
    """The same with the kind before it, as ``-o name`` prints it."""
    return f"{NAMED_BY[kind][0]}/{name_of(kind, row)}"


def named(kind: str, rows: Sequence[Row], name: str) -> list[Row]:
    """The rows that a name fits: the whole name, its beginning or its end in full parts.

    ``node-1`` is a node, and every chip and fault of it; a chip may be given by its number, a job without kind or
    namespace, a revision by its first digits.

    Raises:
        InputError: there is none.
    """
    fits = _fits(kind, name)
    exact = [row for row in rows if name_of(kind, row) == name]
    found = exact or [row for row in rows if fits(_parts(kind, row))]
    if not found:
        raise InputError(
            f"there is no {NAMED_BY[kind][0]} {name!r}", hint=_suggestion(kind, rows, name), code="NoSuchObject"
        )
    return found


def _fits(kind: str, name: str) -> Callable[[tuple[str, ...]], bool]:
    given = tuple(name.split("/"))

    def fits(parts: tuple[str, ...]) -> bool:
        if kind == "revisions":
            return len(name) >= _SHORTEST_REVISION and "".join(parts[:1]).startswith(name)
        if parts[: len(given)] == given or parts[-len(given) :] == given:
            return True
        if kind in ("jobs", "recoveries"):
            namespace, _, job = parts[:3]
            return given in ((job,), (namespace, job), parts[:3])
        if kind in ("chips", "faults", "vnpus") and len(given) > 1 and given[1].isdecimal():
            numbered = (given[0], f"{parts[1].rpartition('-')[0]}-{given[1]}", *given[2:])
            return parts[: len(given)] == numbered
        return False

    return fits


def _parts(kind: str, row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(column)) for column in NAMED_BY[kind][1] if row.get(column) not in (None, ""))


def _suggestion(kind: str, rows: Sequence[Row], name: str) -> str:
    known = [name_of(kind, row) for row in rows[:_COMPARED]]
    near = difflib.get_close_matches(name, known, 3, 0.5)
    return f"Did you mean {' or '.join(near)}?" if near else f"`belay get {kind}` lists them."

"""Kinds of workloads as rows of data: where an object of a kind says how many pods it has, and which start together.

`belay.engine.documents` compiles the rows from documents of kind ``WorkloadKind``; `belay.engine.gangs` reads objects
by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

#: In a path of fields: every element of a list, or every value of a map.
EACH: Final = "*"


class StartTogether(StrEnum):
    """Which pods of a workload start together or not at all."""

    WHOLE = "whole"
    """All that ask for chips."""
    GROUPS = "groups"
    """Those of one group, such as a replica of a LeaderWorkerSet."""
    NONE = "none"
    """None: each pod, or each workload that an object of the kind makes, starts for itself."""


class Factor(msgspec.Struct, frozen=True):
    """One factor of a role's number of pods: a field, and what it is where it is absent."""

    path: tuple[str, ...]
    default: int = 1


class Condition(msgspec.Struct, frozen=True):
    """Whether a field has one of these values, as text; a field that is absent has the value empty."""

    path: tuple[str, ...]
    values: tuple[str, ...]


class WorkloadRole(msgspec.Struct, frozen=True):
    """Where the roles of a workload stand that have their number of pods and their template in the same fields.

    ``path`` leads to the roles: over ``EACH`` to those of a list or a map; empty: to the object itself. The number of
    pods is the product of ``factors``. ``template`` leads from the role to its pod template: only pods that ask for
    chips are counted. ``minimum`` leads to how many of them must start together, in force where ``minimum_when`` holds.
    """

    path: tuple[str, ...]
    factors: tuple[Factor, ...]
    template: tuple[str, ...] = ()
    minimum: tuple[Factor, ...] = ()
    minimum_when: Condition | None = None


class WorkloadRow(msgspec.Struct, frozen=True):
    """One row of the table.

    ``group``, ``versions`` (the preferred one first), ``kind`` and ``plural`` name the kind as the API server serves
    it. ``minimum`` are fields with the number of pods that start together, the first one that is set counts.
    ``stepwise``: pods are made one after the other, so that none may wait for the others. ``group_labels`` are the
    labels or annotations of pods whose values name their group, ``size_keys`` those that say how many pods it has,
    ``size`` the factors of that number in the object. ``pod_keys``: pods name the object by a label or an annotation,
    whatever controls them. ``rank_keys`` hold a pod's number. ``annotations`` are annotations of the gang that stand
    in fields of the object.
    """

    name: str
    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    together: StartTogether = StartTogether.WHOLE
    roles: tuple[WorkloadRole, ...] = ()
    minimum: tuple[tuple[str, ...], ...] = ()
    stepwise: Condition | None = None
    group_labels: tuple[str, ...] = ()
    size: tuple[Factor, ...] = ()
    size_keys: tuple[str, ...] = ()
    pod_keys: tuple[str, ...] = ()
    rank_keys: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    priority_class: tuple[str, ...] = ()
    annotations: tuple[tuple[str, tuple[str, ...]], ...] = ()


class WorkloadTable(msgspec.Struct, frozen=True):
    """The rows in force, by API group and kind; ``named`` are those whose objects pods name themselves.

    ``kueue_counts``: jobs that Kueue has admitted count in its queues alone.
    """

    rows: Mapping[tuple[str, str], WorkloadRow] = {}
    named: tuple[WorkloadRow, ...] = ()
    kueue_counts: bool = True

    def of(self, api_version: str, kind: str) -> WorkloadRow | None:
        """The row of a kind, None if the table has none."""
        return self.rows.get((api_group(api_version), kind))


def table_of(rows: Iterable[WorkloadRow], kueue_counts: bool = True) -> WorkloadTable:
    """A table of rows; of two for one kind the first counts."""
    found: dict[tuple[str, str], WorkloadRow] = {}
    for row in rows:
        found.setdefault((row.group, row.kind), row)
    return WorkloadTable(found, tuple(row for row in found.values() if row.pod_keys), kueue_counts)


def api_group(api_version: str) -> str:
    """The group of an ``apiVersion``; empty for the core group."""
    return api_version.rpartition("/")[0]


NO_TABLE = WorkloadTable()

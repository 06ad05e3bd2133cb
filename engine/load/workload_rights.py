"""The right to read kinds of workloads, derived from their rows: a ClusterRole that Kubernetes adds to the engine's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from belay.engine.model.labels import READS_WORKLOADS
from belay.engine.model.workload_kinds import WorkloadRow

SHIPPED_ROLE: Final = "belay-workloads-shipped"
OWN_ROLE: Final = "belay-workloads-own"


def role_text(rows: Iterable[WorkloadRow], name: str) -> str:
    """The role as a file."""
    comment = "# Made from policies/workloads by `belay schema --rights`; do not edit.\n"
    return comment + yaml.safe_dump(_role(rows, name), sort_keys=False, width=120)


def _role(rows: Iterable[WorkloadRow], name: str) -> dict[str, Any]:
    plurals: dict[str, set[str]] = {}
    for row in rows:
        if row.group:  # the engine's own rights cover the core group
            plurals.setdefault(row.group, set()).add(row.plural)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {READS_WORKLOADS: "true"}},
        "rules": [
            {"apiGroups": [group], "resources": sorted(plurals[group]), "verbs": ["list", "watch"]}
            for group in sorted(plurals)
        ],
    }

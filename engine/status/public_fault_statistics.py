"""``cluster-system/statistic-fault-info``: the current public faults, in ClusterD's form.

Source: component/clusterd/pkg/application/publicfault; docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import FAULT_STATISTIC, MANAGED_BY
from belay.engine.model.plan import Plan
from belay.engine.status.bodies import config_map
from belay.engine.wire import publicinfo
from belay.engine.wire.gojson import go_json
from belay.engine.wire.publicinfo import STATISTICS, STATISTICS_NAMESPACE

#: Beyond this many faults only their number is published.
SHOWN: Final = 4500
_KEY: Final = ObjectKey("v1", "ConfigMap", STATISTICS_NAMESPACE, STATISTICS)
_FULL: Final = f"more than {SHOWN} public faults: the list is left out"


def with_public_faults(plan: Plan, observed: Observed) -> Observed:
    """The snapshot with current public faults merged into the nodes' reports; itself where there are none."""
    changed = {
        node: publicinfo.merged(observed.reports[node], memory.public)
        for node, memory in plan.history.nodes.items()
        if memory.public and node in observed.reports
    }
    return msgspec.structs.replace(observed, reports=observed.reports | changed) if changed else observed


def bodies(plan: Plan, observed: Observed) -> list[dict[str, Any]]:
    """The ConfigMap, once there has been a public fault; none where another component owns it."""
    standing = observed.objects.get(_KEY)
    if standing is not None:
        labels = (standing.get("metadata") or {}).get("labels") or {}
        if labels.get(MANAGED_BY) != "belay":
            return []
    rows: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for node, memory in sorted(plan.history.nodes.items()):
        for key, seen in sorted(memory.public.items()):
            if seen.over:
                continue
            number += 1
            resource, _, identifier = key.partition("/")
            rows.setdefault(node, []).append(
                {
                    "resource": resource,
                    "devIds": list(seen.chips),
                    "faultId": identifier,
                    "type": seen.kind or _TYPES.get(seen.code[:1], "NPU"),
                    "faultCode": seen.code,
                    "level": seen.level,
                    "faultTime": seen.time // 1000,
                }
            )
    if standing is None and not number:
        return []
    listed = number <= SHOWN
    data = {
        "PublicFaults": go_json(rows) if listed else "",
        "FaultNum": go_json({"publicFaultNum": number}),
        "Description": "" if listed else _FULL,
    }
    return [config_map(STATISTICS_NAMESPACE, STATISTICS, data, {FAULT_STATISTIC: "true"})]


#: The type by the first digit of a public code, for faults that an older version remembered without their type.
_TYPES: Final = {"0": "NPU", "1": "Node", "2": "Network", "3": "Storage"}

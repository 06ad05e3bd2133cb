"""Settings of slow-node detection, and what was found as public faults.

``ras-feature-slownode-*``: label ``fd-ol-slow-node=true``, key ``FeatConf``; its keys may have any case, as Go reads
them. Sources: docs/zh/scheduling/04_usage/04_resumable_training/01_solutions_principles.md,
component/ascend-faultdiag-online/pkg/model/slownode/slownode.go (Job) and
pkg/service/servicefunc/slownode/cluster/callback_processor.go (the fault).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.public_faults import MAX_DESCRIPTION, MAX_DEVICES, MAX_INFLUENCES
from belay.engine.model.step_times import RESOURCE, SlowFinding, Slowness, SlownessSettings, explained
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import go_json, read_object
from belay.engine.wire.names import DEVICE_NAMESPACE, NODE_NAMESPACE, SLOW_NODES, SYSTEM

LABEL: Final = "fd-ol-slow-node"
PREFIX: Final = "ras-feature-slownode"
KEY: Final = "FeatConf"
SLOW_NODE: Final = "110001010"
SLOW_IN_NODE: Final = "200001010"
SLOW_BETWEEN_NODES: Final = "200001011"
SLOW_LINK: Final = "200001012"
VERSION: Final = "1.0"
_MAX_WINDOWS: Final = 100
FOR_ALL: Final = frozenset({SYSTEM, NODE_NAMESPACE, DEVICE_NAMESPACE, "cluster-system"})
"""Namespaces whose settings count for jobs of every namespace. Elsewhere a tenant could switch another's job, or have
its chips called slow."""


class SlowNodeSettings(msgspec.Struct, frozen=True):
    """Settings of one job; ``source`` is the ConfigMap's namespace and name."""

    namespace: str
    job: str
    on: bool
    limits: SlownessSettings
    source: str


def parse_settings(config_map: Mapping[str, Any]) -> SlowNodeSettings:
    """Read ``FeatConf``. A limit that is left out has Belay's default; the others follow the document.

    Raises:
        WireError: not JSON, no job, a number out of range, or a job of another namespace than that of the ConfigMap
            where that is none of FOR_ALL.
    """
    metadata, data = config_map.get("metadata") or {}, config_map.get("data") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    raw = {key.lower(): value for key, value in read_object(where, f"data.{KEY}", data.get(KEY)).items()}
    job = raw.get("jobname")
    if not isinstance(job, str) or not job:
        raise WireError(where, f"data.{KEY}.jobName", "must name the job")
    default = SlownessSettings()
    limits = SlownessSettings(
        _number(where, raw, "degradationPercentage", default.degradation, 0.001, 10.0),
        _number(where, raw, "nSigma", default.sigmas, 1.0, 100.0),
        round(_number(where, raw, "nConsecAnomaliesSignifySlow", float(default.windows), 1.0, float(_MAX_WINDOWS))),
    )
    on = _number(where, raw, "SlowNode", 1.0, 0.0, 1.0) == 1.0
    namespace, own = str(raw.get("jobnamespace") or "default"), str(metadata.get("namespace", ""))
    if own not in FOR_ALL and own != namespace:
        raise WireError(
            where, f"data.{KEY}.jobNamespace",
            f"{namespace[:63]!r} must be {own!r}: settings for jobs of other namespaces belong into {NODE_NAMESPACE}",
        )  # fmt: skip
    source = f"{own}/{metadata.get('name', '')}"
    return SlowNodeSettings(namespace, job, on, limits, source)


def _number(where: str, raw: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = raw.get(name.lower())
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise WireError(where, f"data.{KEY}.{name}", f"{str(value)[:40]} must be a number from {least:g} to {most:g}")
    return float(value)


def described(job: str, found: SlowFinding) -> str:
    """The finding with its job."""
    return f"job {job}: {explained(found)}"[:MAX_DESCRIPTION]


def faults(
    job: str,
    name: str,
    findings: Sequence[SlowFinding],
    node_of: Mapping[int, str],
    chip_of: Mapping[int, int],
    shared: Mapping[str, Collection[int]] | None = None,
) -> dict[str, dict[str, Any]]:
    """What stands for each finding, by the id of its fault; ``job`` is its uid, ``name`` its namespace and name.

    ``node_of`` and ``chip_of`` give nodes and physical chips by rank; ``shared`` the only rank in all slow groups of
    one kind, by kind: then that chip is slow, not the groups.
    """
    found: dict[str, dict[str, Any]] = {}
    links = {one.group for one in findings if one.group and _many(findings, one.group)}
    for one in findings:
        ranks = tuple((shared or {}).get(one.group) or ()) or one.ranks
        chips: dict[str, set[int]] = {}
        for rank in ranks:
            if rank in node_of:
                chips.setdefault(node_of[rank], set()).add(chip_of.get(rank, 0))
        if not chips:
            continue
        nodes = {node_of[rank] for rank in one.ranks if rank in node_of}
        if one.kind is not Slowness.COMMUNICATION:
            code = SLOW_NODE
        elif len(nodes) == 1:
            code = SLOW_IN_NODE
        else:
            code = SLOW_LINK if one.group in links and len(ranks) > 1 else SLOW_BETWEEN_NODES
        key = f"{job[:64]}.{one.key}"
        found[key] = {
            "job": job,
            "name": name,
            "id": key,
            "code": code,
            "kind": one.kind.value,
            "ranks": list(ranks[:MAX_DEVICES]),
            "nodes": {node: sorted(some)[:MAX_DEVICES] for node, some in sorted(chips.items())[:MAX_INFLUENCES]},
            "text": described(name, one),
        }
    return found


def _many(findings: Sequence[SlowFinding], group: str) -> bool:
    """Whether several groups of one kind are slow: no card of theirs alone can be the cause."""
    return sum(one.group == group for one in findings) > 1


def claim(row: Mapping[str, Any], assertion: str, now: int) -> dict[str, Any]:
    """The fault in a message of public faults; ``now`` in Unix ms."""
    network = row["code"] != SLOW_NODE
    return {
        "faultId": row["id"],
        "faultType": "Network" if network else "Node",
        "faultCode": row["code"],
        "faultTime": now,
        "assertion": assertion,
        "faultLocation": row.get("location") or {"job": row["name"][:128], "kind": row["kind"]},
        "influence": [{"nodeName": node, "deviceIds": chips} for node, chips in row["nodes"].items()],
        "description": row["text"],
    }


def message(name: str, now: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A message of these faults."""
    return {"id": name, "timestamp": now, "version": VERSION, "resource": RESOURCE, "faults": list(rows)}


def record(rows: Mapping[str, Mapping[str, Any]], name: str = SLOW_NODES, about: str = "slow-nodes") -> dict[str, Any]:
    """``belay-slow-nodes``, or another ``name``: what stands now, for the next server and for `kubectl`."""
    metadata = {"name": name, "namespace": SYSTEM, "labels": {ABOUT_LABEL: about}}
    data = {key: go_json(dict(row)) for key, row in sorted(rows.items())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def recorded(config_map: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What a server wrote; a row that cannot be read is left out."""
    found: dict[str, dict[str, Any]] = {}
    for key, text in ((config_map or {}).get("data") or {}).items():
        try:
            row = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        if not isinstance(row, dict) or not row.keys() >= {"job", "name", "id", "code", "kind", "nodes", "text"}:
            continue
        if isinstance(row["nodes"], dict) and all(isinstance(chips, list) for chips in row["nodes"].values()):
            found[key] = row
    return found


__all__ = [
    "LABEL", "PREFIX", "SlowNodeSettings", "claim", "described", "faults", "message", "parse_settings", "record",
    "recorded",
]  # fmt: skip

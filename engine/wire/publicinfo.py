"""ConfigMaps that carry public faults, and ClusterD's list of those it holds.

Any ConfigMap with label ``mc-consumer-publicfault=true`` carries a message in key ``PublicFault``; Belay's own inbox
(what came in by gRPC) carries one in each key ``PublicFault.<message id>``. ``statistic-fault-info`` is what ClusterD
holds. Sources: component/clusterd/pkg/application/publicfault; docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from engine.model.cluster import ChipFault, DeviceReport, PublicReport
from engine.model.faults import PUBLIC
from engine.model.history import PublicSeen
from engine.model.publicfaults import Message, Problem, read
from engine.wire.errors import WireError
from engine.wire.gojson import go_json, read_object

LABEL: Final = "mc-consumer-publicfault"
KEY: Final = "PublicFault"
INBOX_NAMESPACE: Final = "belay-system"
INBOX: Final = "belay-public-faults"
STATISTICS_NAMESPACE: Final = "cluster-system"
STATISTICS: Final = "statistic-fault-info"
_MAX_PROBLEMS: Final = 20


class Held(msgspec.Struct, frozen=True):
    """One fault of ``statistic-fault-info``; ``time_s`` in Unix seconds."""

    resource: str
    id: str
    code: str
    level: str
    time_s: int
    chips: tuple[int, ...]


def labelled(config_map: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap carries public faults."""
    labels = (config_map.get("metadata") or {}).get("labels")
    return isinstance(labels, dict) and labels.get(LABEL) == "true"


def parse(config_map: Mapping[str, Any]) -> PublicReport:
    """Every message of a labelled ConfigMap, and what is wrong with it; bounded."""
    metadata, data = config_map.get("metadata") or {}, config_map.get("data")
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    keys = sorted(k for k in data if k == KEY or k.startswith(f"{KEY}.")) if isinstance(data, dict) else []
    messages: list[Message] = []
    problems: list[Problem] = []
    for key in keys or [KEY]:
        try:
            body = read_object(where, f"data.{key}", (data or {}).get(key) if isinstance(data, dict) else None)
        except WireError as error:
            problems.append(Problem(error.field, error.message))
            continue
        message, found = read(body)
        problems += [Problem(f"data.{key}.{p.field}", p.message) for p in found]
        if message is not None:
            messages.append(message)
    return PublicReport(tuple(messages), tuple(problems[:_MAX_PROBLEMS]), len(problems))


def build(namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap by which a component says something; ``body`` is the message."""
    return _config_map(namespace, name, {KEY: go_json(body)})


def inbox(messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Belay's own inbox with these messages, each under its id."""
    return _config_map(INBOX_NAMESPACE, INBOX, {f"{KEY}.{body['id']}": go_json(body) for body in messages})


def statistics(config_map: Mapping[str, Any]) -> dict[str, tuple[Held, ...]]:
    """What ClusterD holds, by node; empty where it only counts (beyond 4500 faults).

    Raises:
        WireError: not what ClusterD writes.
    """
    metadata, data = config_map.get("metadata") or {}, config_map.get("data") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if not data.get("PublicFaults"):
        return {}
    body = read_object(where, "data.PublicFaults", data["PublicFaults"])
    out: dict[str, tuple[Held, ...]] = {}
    for node, rows in sorted(body.items()):
        if not isinstance(rows, list):
            raise WireError(where, f"data.PublicFaults.{node}", "must be a list")
        out[node] = tuple(sorted((_held(where, node, row) for row in rows), key=lambda h: (h.resource, h.id)))
    return out


def merged(report: DeviceReport, seen: Mapping[str, PublicSeen], foreign: tuple[Held, ...] = ()) -> DeviceReport:
    """A copy of the report with an element per standing public fault and chip; a code on a chip is shown once."""
    rows = {(fault.chip, fault.code) for fault in report.faults if fault.kind == PUBLIC}
    added: dict[tuple[int, str], ChipFault] = {}
    for key in sorted(seen):
        fault = seen[key]
        for chip in fault.chips if not fault.over else ():
            if (chip, fault.code) not in rows:
                # shown in seconds, as the original shows them
                added.setdefault(
                    (chip, fault.code), ChipFault(PUBLIC, chip, fault.code, fault.level, fault.time // 1000)
                )
    for held in foreign:
        for chip in held.chips:
            if (chip, held.code) not in rows:
                added.setdefault((chip, held.code), ChipFault(PUBLIC, chip, held.code, held.level, held.time_s))
    if not added:
        return report
    return msgspec.structs.replace(report, faults=(*report.faults, *(added[key] for key in sorted(added))))


def _held(where: str, node: str, row: object) -> Held:
    if not isinstance(row, dict) or not isinstance(row.get("devIds"), list):
        raise WireError(where, f"data.PublicFaults.{node}", "must hold objects with devIds")
    chips = tuple(sorted({chip for chip in row["devIds"] if type(chip) is int and 0 <= chip < 1024}))
    moment = row.get("faultTime")
    return Held(
        str(row.get("resource", "")),
        str(row.get("faultId", "")),
        str(row.get("faultCode", "")).upper(),
        str(row.get("level", "")),
        moment if type(moment) is int else 0,
        chips,
    )


def _config_map(namespace: str, name: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL: "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

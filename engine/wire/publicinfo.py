"""ConfigMaps that carry public faults, and ClusterD's list of current public faults.

Any ConfigMap with label ``mc-consumer-publicfault=true`` carries a message in key ``PublicFault``; Belay's own
``belay-public-faults`` (messages by gRPC) carries one in each key ``PublicFault.<message id>``. ClusterD lists its
current public faults in ``statistic-fault-info``. Sources: component/clusterd/pkg/application/publicfault;
docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import ChipFault, DeviceReport, PublicReport
from belay.engine.model.faults import PUBLIC
from belay.engine.model.history import PublicFaultMemory
from belay.engine.model.labels import PUBLIC_FAULT_CONSUMER
from belay.engine.model.public_faults import PublicFaultMessage, PublicFaultProblem, read
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import go_json, read_object

KEY: Final = "PublicFault"
MESSAGES_NAMESPACE: Final = "belay-system"
MESSAGES: Final = "belay-public-faults"
STATISTICS_NAMESPACE: Final = "cluster-system"
STATISTICS: Final = "statistic-fault-info"
_MAX_PROBLEMS: Final = 20


class PublicFaultRow(msgspec.Struct, frozen=True):
    """One fault of ``statistic-fault-info``; ``time_s`` in Unix seconds."""

    resource: str
    id: str
    code: str
    level: str
    time_s: int
    chips: tuple[int, ...]


def has_public_faults(config_map: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap carries public faults."""
    labels = (config_map.get("metadata") or {}).get("labels")
    return isinstance(labels, dict) and labels.get(PUBLIC_FAULT_CONSUMER) == "true"


def parse(config_map: Mapping[str, Any]) -> PublicReport:
    """The messages of a labelled ConfigMap and its errors, both bounded."""
    metadata, data = config_map.get("metadata") or {}, config_map.get("data")
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    keys = sorted(k for k in data if k == KEY or k.startswith(f"{KEY}.")) if isinstance(data, dict) else []
    if not keys and not data and (metadata.get("namespace"), metadata.get("name")) == (MESSAGES_NAMESPACE, MESSAGES):
        return PublicReport((), (), 0)  # every message of Belay's own has been taken
    messages: list[PublicFaultMessage] = []
    problems: list[PublicFaultProblem] = []
    for key in keys or [KEY]:
        try:
            body = read_object(where, f"data.{key}", (data or {}).get(key) if isinstance(data, dict) else None)
        except WireError as error:
            problems.append(PublicFaultProblem(error.field, error.message))
            continue
        message, found = read(body)
        problems += [PublicFaultProblem(f"data.{key}.{p.field}", p.message) for p in found]
        if message is not None:
            messages.append(message)
    return PublicReport(tuple(messages), tuple(problems[:_MAX_PROBLEMS]), len(problems))


def build(namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap by which a component reports public faults; ``body`` is the message."""
    return _config_map(namespace, name, {KEY: go_json(body)})


def build_messages(messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Belay's own ConfigMap with these messages, each under its id."""
    return _config_map(MESSAGES_NAMESPACE, MESSAGES, {f"{KEY}.{body['id']}": go_json(body) for body in messages})


def with_messages(old: Mapping[str, str], fresh: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The data of Belay's own ConfigMap with more messages, given as (id, text).

    The id of a message is the sender's choice, so two may bear the same one: the second has its digest in its key.
    """
    data = dict(old)
    for name, text in fresh:
        key = f"{KEY}.{name}"
        while data.get(key, text) != text:
            key = f"{key}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        data[key] = text
    return data


def message_of(text: str) -> PublicFaultMessage | None:
    """The message of one key; None when it is none."""
    try:
        return read(read_object(MESSAGES, KEY, text))[0]
    except WireError:
        return None


def statistics(config_map: Mapping[str, Any]) -> dict[str, tuple[PublicFaultRow, ...]]:
    """ClusterD's current public faults by node; empty where it only counts them (beyond 4500 faults).

    Raises:
        WireError: the ConfigMap does not have ClusterD's format.
    """
    metadata, data = config_map.get("metadata") or {}, config_map.get("data") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if not data.get("PublicFaults"):
        return {}
    body = read_object(where, "data.PublicFaults", data["PublicFaults"])
    out: dict[str, tuple[PublicFaultRow, ...]] = {}
    for node, rows in sorted(body.items()):
        if not isinstance(rows, list):
            raise WireError(where, f"data.PublicFaults.{node}", "must be a list")
        out[node] = tuple(sorted((_row(where, node, row) for row in rows), key=lambda h: (h.resource, h.id)))
    return out


def merged(
    report: DeviceReport, seen: Mapping[str, PublicFaultMemory], foreign: tuple[PublicFaultRow, ...] = ()
) -> DeviceReport:
    """A copy of the report with one element per current public fault and chip; a code appears once per chip."""
    rows = {(fault.chip, fault.code) for fault in report.faults if fault.kind == PUBLIC}
    added: dict[tuple[int, str], ChipFault] = {}
    for key in sorted(seen):
        fault = seen[key]
        for chip in fault.chips if not fault.over else ():
            if (chip, fault.code) not in rows:
                # in seconds, as MindCluster shows them
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


def _row(where: str, node: str, row: object) -> PublicFaultRow:
    if not isinstance(row, dict) or not isinstance(row.get("devIds"), list):
        raise WireError(where, f"data.PublicFaults.{node}", "must hold objects with devIds")
    chips = tuple(sorted({chip for chip in row["devIds"] if type(chip) is int and 0 <= chip < 1024}))
    moment = row.get("faultTime")
    return PublicFaultRow(
        str(row.get("resource", "")),
        str(row.get("faultId", "")),
        str(row.get("faultCode", "")).upper(),
        str(row.get("level", "")),
        moment if type(moment) is int else 0,
        chips,
    )


def _config_map(namespace: str, name: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {PUBLIC_FAULT_CONSUMER: "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

"""``belay-ranktable-<namespace>.<job>``: a rank table for the files on the nodes where the job runs.

MindCluster's operator writes ``/user/mindx-dl/ranktable/<namespace>.<job>/hccl.json`` on a shared volume that it
mounts. Belay's planner has no disks: it writes the table into this ConfigMap, and each node's agent writes the file.
Large tables are compressed, since a ConfigMap holds 1 MiB and ten thousand chips need more.
Source: component/ascend-operator/pkg/ranktable/generator (file names, version key).
"""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.actions import WriteRankTable
from belay.engine.model.labels import DEPLOY_NAME, JOB_NAME_LABEL, MANAGED_BY, VOLCANO_JOB_NAME
from belay.engine.model.quantities import whole_number
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM, bounded

PREFIX: Final = "belay-ranktable-"
#: Volume of a pod that needs the file.
VOLUME: Final = "ranktable"
TABLE_KEY: Final = "hccl.json"
PACKED_KEY: Final = "hccl.json.gz"
VERSION_KEY: Final = "version"
JOB_KEY: Final = "job"
UID_KEY: Final = "uid"
#: Longer text (bytes) is compressed; a decompressed table may have at most ``MAX_BYTES``.
PLAIN_BYTES: Final = 512 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
#: Labels that name a pod's job, in order of preference.
JOB_LABELS: Final = (VOLCANO_JOB_NAME, JOB_NAME_LABEL, DEPLOY_NAME)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class RankFile(msgspec.Struct, frozen=True):
    """One table for one job; ``table`` is the file's text, ``version`` that of the file beside it."""

    namespace: str
    job: str
    table: str
    version: str
    uid: str = ""


def name_of(namespace: str, job: str) -> str:
    """Name of the ConfigMap in ``belay-system``."""
    return bounded(f"{PREFIX}{namespace}.{job}")


def job_of(labels: Mapping[str, str]) -> str:
    """The job of a pod; empty if its labels name none."""
    return next((labels[key] for key in JOB_LABELS if labels.get(key)), "")


def of(action: WriteRankTable) -> RankFile:
    """The file of an action."""
    table = msgspec.json.encode(action.table).decode()
    return RankFile(action.namespace, action.name, table, action.version or "0", action.preconditions.job_uid or "")


def build(file: RankFile) -> dict[str, Any]:
    """The ConfigMap; equal tables give equal bytes."""
    data = {JOB_KEY: f"{file.namespace}/{file.job}", UID_KEY: file.uid, VERSION_KEY: file.version}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": SYSTEM,
            "name": name_of(file.namespace, file.job),
            "labels": {MANAGED_BY: "belay"},
        },
        "data": data,
    }
    raw = file.table.encode()
    if len(raw) > PLAIN_BYTES:
        body["binaryData"] = {PACKED_KEY: base64.b64encode(gzip.compress(raw, mtime=0)).decode()}
    else:
        data[TABLE_KEY] = file.table
    return body


def parse(config_map: Mapping[str, Any]) -> RankFile:
    """Read the ConfigMap back.

    Raises:
        WireError: it names no job, its name belongs to another job, or its table cannot be decompressed.
    """
    name = str((config_map.get("metadata") or {}).get("name") or "")
    where = f"ConfigMap {SYSTEM}/{name}"
    data = config_map.get("data") or {}
    namespace, _, job = str(data.get(JOB_KEY) or "").partition("/")
    if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(job)):
        raise WireError(where, f"data.{JOB_KEY}", "must be NAMESPACE/NAME of the job")
    if name_of(namespace, job) != name:
        raise WireError(where, f"data.{JOB_KEY}", f"names {namespace}/{job}, whose table has another name")
    table = data.get(TABLE_KEY)
    if table is None:
        table = _unpacked(where, (config_map.get("binaryData") or {}).get(PACKED_KEY))
    version = str(data.get(VERSION_KEY) or "0")
    if whole_number(version, digits=20) is None:
        raise WireError(where, f"data.{VERSION_KEY}", "must be a number")
    return RankFile(namespace, job, str(table), version, str(data.get(UID_KEY) or ""))


def _unpacked(where: str, text: object) -> str:
    if not isinstance(text, str):
        raise WireError(where, f"data.{TABLE_KEY}", "there is no table")
    try:
        unpacker = zlib.decompressobj(wbits=31)
        raw = unpacker.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
        if not unpacker.eof:
            raise WireError(where, f"binaryData.{PACKED_KEY}", f"is cut off or larger than {MAX_BYTES} bytes")
        return raw.decode()
    except (ValueError, zlib.error) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(where, f"binaryData.{PACKED_KEY}", f"cannot be unpacked: {error}") from error

"""What the watches told and Redis does not have yet: the newest state of each object, and whether it is news."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from engine.kube import Change, Object, Reflector
from engine.reconcile.intent import last_good_of
from engine.wire import names, publicinfo, rankfile, recoveryrecord

_OWN_OUTPUT = (
    names.POOL_PREFIX, names.HISTORY, names.JOB_PREFIX, names.LEDGER_PREFIX, names.SYNC, names.BUDGET, rankfile.PREFIX,
    recoveryrecord.PREFIX,
)  # fmt: skip
_KEPT_ELSEWHERE = (
    "mindx-dl-", "cluster-info-", "vcjob-", "rings-config-", "reset-config-", "volcano-", "belay-", "clusterd-",
    publicinfo.STATISTICS, "basic-tor-node-cm", "tor-share-cm",
)  # fmt: skip
_TOLD_ELSEWHERE = (
    "cluster-info-", "vcjob-fault-npu-cm", "job-reschedule-reason", publicinfo.STATISTICS, names.JOB_SUMMARY_PREFIX,
    names.JOB_STATISTIC, names.SCHEDULING_EXCEPTIONS,
)  # fmt: skip
_SCALING_RULE = "elastic_scaling.json"
"""Key of a ConfigMap with the scaling rule of inference groups; users give it any name."""
_REPORTS = (names.DEVICE_PREFIX, names.NODE_PREFIX, names.REPORT_PREFIX)
_QUIET_KEYS = frozenset({"UpdateTime", "CheckCode", "seq", "time"})


class Letter(NamedTuple):
    """One changed object on its way to Redis; ``kept`` are blob ids that ``belay-sync`` asks to keep."""

    field: str
    value: bytes | None
    wakes: bool
    kept: frozenset[str] | None


class Inbox:
    """The newest state of every object that changed since it was last emptied: bounded by the number of objects."""

    def __init__(self) -> None:
        self._letters: dict[str, Letter] = {}
        self._marks: dict[str, str] = {}
        self._essence: dict[str, bytes] = {}
        self._news = asyncio.Event()

    def take(self, reflector: Reflector, change: Change) -> None:
        """A change from a watch."""
        res = reflector.res
        field = f"{res.api_version}|{res.kind}|{change.key[0]}|{change.key[1]}"
        if change.obj is None:
            known = self._essence.pop(field, None) is not None
            self._letters[field] = Letter(field, None, known, None)
        elif wanted(change.obj):
            self._put(field, change.obj)
        elif self._essence.pop(field, None) is not None:
            # it lost the label that made it ours
            self._letters[field] = Letter(field, None, True, None)
        self._news.set()

    def progress(self, reflector: Reflector) -> None:
        """A watch got further, even if nothing we want changed."""
        if reflector.watermark:
            self._marks[f"{reflector.res.api_version}|{reflector.res.kind}"] = reflector.watermark
        self._news.set()

    def wake(self) -> None:
        """Make ``wait`` return."""
        self._news.set()

    async def wait(self) -> None:
        """Until there is news."""
        await self._news.wait()

    def empty(self) -> tuple[list[Letter], dict[str, str]]:
        """Everything that came, and how far the watches are."""
        self._news.clear()
        letters, marks = list(self._letters.values()), dict(self._marks)
        self._letters.clear()
        self._marks.clear()
        return letters, marks

    def clear(self) -> None:
        """Forget everything: it will be told anew."""
        self.empty()
        self._essence.clear()

    def _put(self, field: str, obj: Object) -> None:
        slim = slimmed(obj)
        digest = essence(slim)
        wakes = self._essence.get(field) != digest and not own_output(slim)
        earlier = self._letters.get(field)
        self._essence[field] = digest
        kept = None
        metadata = slim["metadata"]
        if metadata.get("name") == names.SYNC and metadata.get("namespace") == names.SYSTEM:
            kept = frozenset(blob for ids in last_good_of(slim).values() for blob in ids)
        wakes = wakes or (earlier is not None and earlier.wakes)
        self._letters[field] = Letter(field, orjson.dumps(slim), wakes, kept)


def wanted(obj: Object) -> bool:
    """Whether the snapshot holds the object: all but ConfigMaps that are none of Belay's and MindCluster's business."""
    if obj.get("kind") != "ConfigMap":
        return True
    metadata = obj["metadata"]
    if metadata.get("namespace") in {names.SYSTEM, names.NODES}:
        return True
    if str(metadata.get("name") or "").startswith(_KEPT_ELSEWHERE) or publicinfo.labelled(obj):
        return True
    if _SCALING_RULE in (obj.get("data") or {}):
        return True
    return any(entry.get("manager") == "belay" for entry in metadata.get("managedFields") or [])


def own_output(obj: Object) -> bool:
    """Whether only Belay writes the object, as the result of a pass: seeing it again is no reason for another one."""
    metadata: Mapping[str, Any] = obj["metadata"]
    if obj["kind"] != "ConfigMap":
        return False
    name = str(metadata.get("name") or "")
    if metadata.get("namespace") == names.SYSTEM:
        return name.startswith(_OWN_OUTPUT)
    return name.startswith(_TOLD_ELSEWHERE)


def slimmed(obj: Object) -> Object:
    """The object with its field owners cut down to their names: the rest is half of its size and nobody plans by it."""
    metadata = dict(obj["metadata"])
    managers = {str(entry.get("manager")) for entry in metadata.pop("managedFields", None) or []}
    if managers:
        metadata["managedFields"] = [{"manager": manager} for manager in sorted(managers)]
    return {**obj, "metadata": metadata}


def essence(obj: Object) -> bytes:
    """A digest of what may change a decision: heartbeats alone do not."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"resourceVersion", "managedFields"}}
    rest: dict[str, Any] = {**obj, "metadata": metadata}
    if obj["kind"] == "Node":
        conditions = (obj.get("status") or {}).get("conditions") or []
        still = [{k: v for k, v in one.items() if k != "lastHeartbeatTime"} for one in conditions]
        rest["status"] = {**(obj.get("status") or {}), "conditions": still}
    elif obj["kind"] == "ConfigMap" and str(metadata.get("name") or "").startswith(_REPORTS):
        rest["data"] = {key: _quiet(value) for key, value in (obj.get("data") or {}).items()}
    return hashlib.blake2b(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS), digest_size=12).digest()


def _quiet(value: object) -> object:
    """A report without its clock: parsed where it is JSON, as it is otherwise."""
    try:
        parsed = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value
    if not isinstance(parsed, dict):
        return value
    return {
        key: {k: v for k, v in inner.items() if k not in _QUIET_KEYS} if isinstance(inner, dict) else inner
        for key, inner in parsed.items()
        if key not in _QUIET_KEYS
    }

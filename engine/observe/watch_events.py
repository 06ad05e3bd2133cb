"""Changes from the watches that are not in Redis yet: each object's newest state, and whether it wakes a pass."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from belay.engine.kube import Object, Reflector, WatchChange
from belay.engine.observe.resources import WATCHED
from belay.engine.wire import names, publicinfo, rankfile, recoveryrecord, shardview, sync
from belay.engine.wire.objects import POD_SCHEDULED

_OWN_OUTPUT = (
    names.POOL_PREFIX, names.HISTORY, names.JOB_PREFIX, names.LEDGER_PREFIX, names.SYNC, names.BUDGET, rankfile.PREFIX,
    recoveryrecord.PREFIX, names.REVISIONS, names.SLOW_NODES, names.SLOW_NETWORKS,
    names.MAP_PREFIX, names.CHIPS_PREFIX, names.QUEUES_PREFIX, names.SERVER, names.NOTIFY,
)  # fmt: skip
_KEPT_ELSEWHERE = (
    "mindx-dl-", "cluster-info-", "vcjob-", "rings-config-", "reset-config-", "volcano-", "belay-", "clusterd-",
    publicinfo.STATISTICS, "basic-tor-node-cm", "tor-share-cm", "snapshot-metadata-",
)  # fmt: skip
_WRITTEN_ELSEWHERE = (
    "cluster-info-", "vcjob-fault-npu-cm", "job-reschedule-reason", publicinfo.STATISTICS, names.JOB_SUMMARY_PREFIX,
    names.JOB_STATISTIC, names.SCHEDULING_EXCEPTIONS,
)  # fmt: skip
_SHARD_PART = f"{names.SYNC}."
_VIEW_PART = names.VIEW_PREFIX
_TURNS = frozenset({sync.APPLIED, sync.READY, sync.READY_REASON})
_UNREAD = frozenset({names.COMMIT, names.PASS})
_SCALING_RULE = "elastic_scaling.json"
"""Key in a ConfigMap with the scaling rule of inference groups; the ConfigMap may have any name."""
_REPORTS = (names.DEVICE_PREFIX, names.NODE_PREFIX, names.REPORT_PREFIX, names.FAULT_SUBSCRIBERS)
_GROUP = "belay.dev"
_FIXED = frozenset((one.resource.api_version, one.resource.kind) for one in WATCHED)
_QUIET_KEYS = frozenset({"UpdateTime", "CheckCode", "seq", "time"})


class ObjectChange(NamedTuple):
    """One changed object for Redis. ``kept`` are blob ids that ``belay-sync`` keeps, ``base`` is the revision after
    which commits may confirm a deletion, ``waits`` whether a deletion waits.
    """

    field: str
    value: bytes | None
    wakes: bool
    kept: frozenset[str] | None
    base: str = ""
    waits: bool = False


class ChangeSignal:
    """Wakes one who waits for changes: at once for news, after a while where only heartbeats have come."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        self._news = asyncio.Event()

    def heartbeat(self) -> None:
        """Something came that is no reason to wake at once."""
        self._any.set()

    def news(self) -> None:
        """Something changed."""
        self._any.set()
        self._news.set()

    def clear(self) -> None:
        """Take what has come."""
        self._any.clear()
        self._news.clear()

    async def wait(self, longest: float) -> None:
        """Wait for news; once there are heartbeats, at most ``longest`` seconds."""
        await self._any.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._news.wait()


class WatchEvents:
    """The newest state of every object that changed since the last ``drain``; bounded by the number of objects."""

    def __init__(self) -> None:
        self._changes: dict[str, ObjectChange] = {}
        self._marks: dict[str, str] = {}
        self._essence: dict[str, bytes] = {}
        self._listed: set[str] = set()
        self._signal = ChangeSignal()

    def receive(self, reflector: Reflector, change: WatchChange) -> None:
        """Receive a change from a watch."""
        res = reflector.res
        field = f"{res.api_version}|{res.kind}|{change.key[0]}|{change.key[1]}"
        self._signal.heartbeat()
        if change.obj is None:
            known = self._essence.pop(field, None) is not None
            self._changes[field] = ObjectChange(field, None, known, None)
            self._signal.news()
        elif wanted(change.obj):
            self._put(field, change.obj)
        elif self._essence.pop(field, None) is not None:
            # it lost the label by which we watched it
            self._changes[field] = ObjectChange(field, None, True, None)
            self._signal.news()

    def forget(self, reflector: Reflector) -> None:
        """Drop every object of a kind that is followed no more."""
        start = f"{reflector.res.api_version}|{reflector.res.kind}|"
        for field in [field for field in self._essence if field.startswith(start)]:
            del self._essence[field]
            self._changes[field] = ObjectChange(field, None, True, None)
        self._signal.news()

    def progress(self, reflector: Reflector) -> None:
        """Record a watch's progress, even without a wanted change."""
        kind = f"{reflector.res.api_version}|{reflector.res.kind}"
        if reflector.watermark:
            self._marks[kind] = reflector.watermark
        self._signal.heartbeat()
        if kind not in self._listed:  # the snapshot may be complete with it
            self._listed.add(kind)
            self._signal.news()

    def wake(self) -> None:
        """Make ``wait`` return."""
        self._signal.news()

    async def wait(self, longest: float = 0.0) -> None:
        """Wait for a change or progress. Where only heartbeats have come, wait ``longest`` seconds for more: a thousand
        nodes send twenty a second, and each write to Redis costs as much as reading ten of them.
        """
        await self._signal.wait(longest)

    def drain(self) -> tuple[list[ObjectChange], dict[str, str]]:
        """Take all changes, and the resourceVersions that the watches have reached."""
        self._signal.clear()
        changes, marks = list(self._changes.values()), dict(self._marks)
        self._changes.clear()
        self._marks.clear()
        return changes, marks

    def clear(self) -> None:
        """Forget everything before a new list."""
        self.drain()
        self._essence.clear()
        self._listed.clear()

    def _put(self, field: str, obj: Object) -> None:
        slim = slimmed(obj)
        digest = essence(slim)
        changed = self._essence.get(field) != digest
        wakes = changed and not own_output(slim)
        if changed or not has_heartbeats(slim):
            self._signal.news()
        earlier = self._changes.get(field)
        self._essence[field] = digest
        kept, base, waits = None, "", False
        metadata = slim["metadata"]
        if metadata.get("name") == names.SYNC and metadata.get("namespace") == names.SYSTEM:
            kept = sync.parse_file_versions(slim).blobs
            base, waits = sync.prune_base(slim), bool((slim.get("data") or {}).get(sync.PRUNE_BASE))
        wakes = wakes or (earlier is not None and earlier.wakes)
        self._changes[field] = ObjectChange(field, orjson.dumps(slim), wakes, kept, base, waits)


def wanted(obj: Object) -> bool:
    """Whether the snapshot holds the object: everything except ConfigMaps of neither Belay nor MindCluster, and those
    that are for agents and people only."""
    if obj.get("kind") != "ConfigMap":
        return True
    metadata = obj["metadata"]
    if metadata.get("namespace") in {names.SYSTEM, names.NODES, names.RECOVERIES}:
        # step times, pings and the last pass change all the time, the signed commit with every push; no pass reads them
        name = str(metadata.get("name") or "")
        return not name.startswith((names.STEPS_PREFIX, names.PINGS_PREFIX)) and name.split(".")[0] not in _UNREAD
    if str(metadata.get("name") or "").startswith(_KEPT_ELSEWHERE) or publicinfo.has_public_faults(obj):
        return True
    if _SCALING_RULE in (obj.get("data") or {}):
        return True
    return any(entry.get("manager") == "belay" for entry in metadata.get("managedFields") or [])


def has_heartbeats(obj: Object) -> bool:
    """Whether others write the object again and again to show that they live."""
    return obj["kind"] == "Node" or _is_report(obj)


def _is_report(obj: Object) -> bool:
    return obj["kind"] == "ConfigMap" and str(obj["metadata"].get("name") or "").startswith(_REPORTS)


def own_output(obj: Object) -> bool:
    """Whether only Belay writes the object, as the result of a pass, so that a change needs no new pass."""
    metadata: Mapping[str, Any] = obj["metadata"]
    if obj["kind"] != "ConfigMap":
        return False
    name = str(metadata.get("name") or "")
    if metadata.get("namespace") in {names.SYSTEM, names.RECOVERIES}:
        return name.startswith(_OWN_OUTPUT) and not name.startswith(_SHARD_PART)
    return name.startswith(_WRITTEN_ELSEWHERE)


def slimmed(obj: Object) -> Object:
    """The object with managedFields reduced to the managers; the rest is half of its size, and no plan uses it."""
    metadata = dict(obj["metadata"])
    managers = {str(entry.get("manager")) for entry in metadata.pop("managedFields", None) or []}
    if managers:
        metadata["managedFields"] = [{"manager": manager} for manager in sorted(managers)]
    return {**obj, "metadata": metadata}


def essence(obj: Object) -> bytes:
    """A digest of what may change a decision, without heartbeats."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"resourceVersion", "managedFields"}}
    rest: dict[str, Any] = {**obj, "metadata": metadata}
    api_version, kind = str(obj.get("apiVersion") or ""), obj["kind"]
    if kind == "Node":
        rest["status"] = _without_heartbeats(obj.get("status") or {})
    elif api_version.startswith(f"{_GROUP}/") or (api_version, kind) not in _FIXED:
        # only passes write the status of Belay's kinds, and of kinds of workloads only the declared part is read
        rest.pop("status", None)
    elif kind == "Pod":
        rest["status"] = _without_waiting(obj.get("status") or {})
    elif kind == "ConfigMap":
        rest |= _what_counts(obj, str(metadata.get("name") or ""))
    return hashlib.blake2b(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS), digest_size=12).digest()


def _without_heartbeats(status: Mapping[str, Any]) -> dict[str, Any]:
    still = []
    for condition in status.get("conditions") or []:
        still.append({key: value for key, value in condition.items() if key != "lastHeartbeatTime"})
    return {**status, "conditions": still}


def _what_counts(config_map: Object, name: str) -> dict[str, Any]:
    """The part of a ConfigMap's content for which a pass is worth its while, if that is not all of it."""
    data = config_map.get("data") or {}
    if name.startswith(_SHARD_PART):
        # the main shard's status follows another shard's at once where it turns, else with its next regular pass
        return {"data": {key: value for key, value in data.items() if key in _TURNS}}
    if name.startswith(_VIEW_PART):
        # states are for readers who wait for faults; why jobs wait may change with every pass
        return {"binaryData": {shardview.STATES: (config_map.get("binaryData") or {}).get(shardview.STATES)}}
    if name.startswith(_REPORTS):
        return {"data": {key: _quiet(value) for key, value in data.items()}}
    return {}


def _without_waiting(status: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's status without ``PodScheduled=False``: passes write it, so it must not cause another one."""
    rows = status.get("conditions")
    others = [
        row
        for row in (rows if isinstance(rows, list) else ())
        if not (isinstance(row, dict) and row.get("type") == POD_SCHEDULED and row.get("status") == "False")
    ]
    rest = {key: value for key, value in status.items() if key != "conditions"}
    return {**rest, "conditions": others} if others else rest


def _quiet(value: object) -> object:
    """A report without its times; unchanged if it is not JSON."""
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

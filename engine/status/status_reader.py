"""The published status read back: ``belay-sync``, ``belay-pool-*``, ``belay-job-*``, ``belay-server`` as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.freshness import DOUBTED, NO_PASS, LastPass, missing_pass
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.wire import history, names, passinfo, sync

#: Selects exactly these ConfigMaps in ``belay-system``; the orders and memories beside them are many and large.
SELECTOR: Final = f"{ABOUT_LABEL} in (sync,pass,pool,job,server,notify)"


class PublishedPool(msgspec.Struct, frozen=True):
    """One pool: numbers of nodes by state, the nodes and chips that are not healthy, and the repeat offenders."""

    name: str
    states: dict[str, int]
    nodes: list[dict[str, Any]]
    chips: list[dict[str, Any]]
    lemons: list[dict[str, Any]] = []


class PublishedJob(msgspec.Struct, frozen=True):
    """One NPU job as ``namespace/Kind/name``; ``pending`` holds reason and message while it waits, ``failure`` those of
    its end once it has failed. ``wanted`` is the number of its pods (0: unknown), ``recoveries`` are its last, newest
    last.
    """

    name: str
    phase: str
    placement: dict[str, Any] = {}
    pending: dict[str, Any] = {}
    failure: dict[str, Any] = {}
    wanted: int = 0
    recoveries: list[dict[str, Any]] = []


class PublishedStatus(msgspec.Struct, frozen=True):
    """The status in a cluster. ``found`` is False where Belay has written none.

    ``refusals`` is what the API server refuses, ``objects`` how many declared objects are in force, waiting, held back
    and refused. ``passes`` are the last passes of the shards; ``no_pass`` says that one is missing, and why, so that
    everything else is as old as the last.
    """

    found: bool
    attempted: str
    applied: str
    conditions: list[dict[str, Any]]
    diagnostics: list[dict[str, Any]]
    deferred: list[dict[str, Any]]
    pools: list[PublishedPool]
    jobs: list[PublishedJob]
    shadow: list[dict[str, Any]] = []
    held_prune: dict[str, Any] = {}
    refusals: list[dict[str, Any]] = []
    objects: dict[str, int] = {}
    passes: list[LastPass] = []
    no_pass: str = ""

    @property
    def condition_rows(self) -> list[dict[str, Any]]:
        """The conditions as people see them: those that are mere information last, so that what is wrong leads."""
        rows = [{**one, "status": sync.INFO} if one.get("severity") == sync.INFO else one for one in self.conditions]
        return sorted(rows, key=lambda one: one.get("status") == sync.INFO)

    @property
    def phases(self) -> dict[str, int]:
        """Jobs by phase."""
        found: dict[str, int] = {}
        for job in self.jobs:
            found[job.phase] = found.get(job.phase, 0) + 1
        return dict(sorted(found.items()))


def read_status(config_maps: Iterable[Mapping[str, Any]], now: float | None = None) -> PublishedStatus:
    """The status in these ConfigMaps; an unreadable key, such as an edited one, counts as empty.

    With the reader's time ``now`` (Unix seconds) it also says whether passes come: where none does, ``Ready`` and
    ``Applied`` are unknown.
    """
    by_name = {str((cm.get("metadata") or {}).get("name", "")): cm.get("data") or {} for cm in config_maps}
    passes = [
        passinfo.parse({"data": data}) for name, data in sorted(by_name.items()) if name.split(".")[0] == names.PASS
    ]
    missing = "; ".join(text for one in passes if now is not None and (text := missing_pass(one, now)))
    published = _published(by_name, passes)
    return _doubted(published, missing) if missing else published


def _doubted(published: PublishedStatus, missing: str) -> PublishedStatus:
    """The status while a pass is missing: conditions that only passes vouch for are Unknown."""
    rows = [
        {**row, "status": "Unknown", "reason": NO_PASS, "message": missing}
        if row.get("type") in DOUBTED and row.get("status") == "True"
        else row
        for row in published.conditions
    ]
    return msgspec.structs.replace(published, conditions=rows, no_pass=missing)


def _published(by_name: Mapping[str, Mapping[str, Any]], passes: list[LastPass]) -> PublishedStatus:
    repository = by_name.get(names.SYNC, {})
    return PublishedStatus(
        names.SYNC in by_name,
        str(repository.get(sync.ATTEMPTED, "")),
        str(repository.get(sync.APPLIED, "")),
        _objects(repository.get("conditions.json")),
        [
            *_objects(repository.get("diagnostics.json")),
            *_servers(by_name.get(names.SERVER, {})),
            *_receivers(by_name.get(names.NOTIFY, {})),
        ],
        _objects(repository.get("deferred.json")),
        [
            PublishedPool(
                name.removeprefix(names.POOL_PREFIX),
                _counts(data.get("nodes")),
                _objects(data.get("nodes.json")),
                _objects(data.get("chips.json")),
                _objects(data.get("lemons.json")),
            )
            for name, data in sorted(by_name.items())
            if name.startswith(names.POOL_PREFIX)
        ],
        [_job(name, data) for name, data in sorted(by_name.items()) if name.startswith(names.JOB_PREFIX)],
        _objects(repository.get("shadow.json")),
        _object(repository.get(sync.HELD_PRUNE)),
        _objects(repository.get(sync.REFUSALS)),
        _counts(repository.get(sync.OBJECTS)),
        passes,
    )


def _servers(data: Mapping[str, str]) -> list[dict[str, Any]]:
    """Findings about servers that cannot serve gRPC."""
    rows = [_object(text) for _, text in sorted(data.items())]
    return [
        {
            "severity": "error",
            "object": f"belay server {row.get('server', '')}".strip(),
            "file": "",
            "line": 0,
            "column": 0,
            "field": "",
            "message": f"serves no gRPC, so no process recovery: {row['message']}",
        }
        for row in rows
        if isinstance(row.get("message"), str)
    ]


def _receivers(data: Mapping[str, str]) -> list[dict[str, Any]]:
    """Findings about receivers that take no notifications."""
    return [
        {
            "severity": "error",
            "object": f"receiver {row['receiver']}",
            "file": "",
            "line": 0,
            "column": 0,
            "field": "",
            "message": f"takes no notifications ({row.get('tries', 0)} tries, {row.get('lost', 0)} given up): "
            f"{row['reason']}. Try it with belay notify test",
        }
        for row in _objects(data.get("problems.json"))
        if isinstance(row.get("reason"), str) and isinstance(row.get("receiver"), str)
    ]


def _job(name: str, data: Mapping[str, str]) -> PublishedJob:
    status = _object(data.get(history.JOB_STATUS_KEY))
    recoveries = status.get("recoveries")
    return PublishedJob(
        str(data.get(history.JOB_NAME_KEY) or name.removeprefix(names.JOB_PREFIX)),
        str(data.get(history.JOB_PHASE_KEY, "Unknown")),
        _mapping(status.get("placement")),
        _mapping(status.get("pending")),
        _failure(status),
        wanted if isinstance(wanted := status.get("wanted"), int) else 0,
        [row for row in recoveries if isinstance(row, dict)] if isinstance(recoveries, list) else [],
    )


def _failure(status: Mapping[str, Any]) -> dict[str, Any]:
    rows = status.get("conditions")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    ended = [row for row in found if row.get("type") == "Ready" and row.get("reason") == "Failed"]
    return {"reason": "Failed", "message": str(ended[0].get("message") or "")} if ended else {}


def _objects(text: str | None) -> list[dict[str, Any]]:
    value = _decode(text)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(text: str | None) -> dict[str, Any]:
    return _mapping(_decode(text))


def _counts(text: str | None) -> dict[str, int]:
    return {state: number for state, number in _object(text).items() if isinstance(number, int)}


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _decode(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None

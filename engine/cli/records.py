"""Answers of `belay get` about queues, recoveries and accepted revisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.cli.answers import Answer
from engine.documents import Desired
from engine.gangs.forming import pending_by_gang
from engine.gangs.grouping import group
from engine.model.cluster import Observed
from engine.model.costs import cost
from engine.model.diagnostics import ObjectKey
from engine.model.history import Recovery
from engine.model.plan import Plan
from engine.model.times import rfc3339
from engine.model.unstructured import nested_map
from engine.status.status_reader import read_status
from engine.wire import names, revisionlog
from engine.wire.errors import WireError

_QUEUE_API: Final = "scheduling.volcano.sh/v1beta1"
_NPU: Final = "huawei.com/"
_OPEN: Final = "Open"
_SUBJECT: Final = 120


def queues(plan: Plan, observed: Observed, desired: Desired) -> Answer:
    """Every queue of the cluster, of the settings, or of a job: its chips, and the jobs that run and wait."""
    rows: dict[str, dict[str, Any]] = {}
    for declared in desired.settings.queues:
        rows[declared.name] = _queue(declared.name, _OPEN, declared.weight, declared.priority, declared.capability)
    for one, raw in observed.objects.items():
        if (one.api_version, one.kind) != (_QUEUE_API, "Queue"):
            continue
        spec, state = nested_map(raw, "spec"), nested_map(raw, "status").get("state") or _OPEN
        weight, priority = spec.get("weight") or 1, spec.get("priority") or 0
        rows[one.name] = _queue(one.name, str(state), weight, priority, nested_map(spec, "capability"))
    gangs, _ = group(observed)
    waiting = pending_by_gang(plan.pending, gangs)
    for key, gang in gangs.items():
        row = rows.setdefault(gang.queue, _queue(gang.queue, _OPEN, 1, 0, {}))
        pods = [observed.pods[name] for name in gang.pods if name in observed.pods]
        used = sum(pod.count for pod in pods if pod.holds_chips)
        wanted = sum(pod.count for pod in pods if not pod.node and not pod.finished)
        row["used"] += used
        row["running"] += bool(used)
        if key in waiting:
            row["waiting"] += 1
            row["wanted"] += wanted
    columns = ("queue", "state", "weight", "capability", "used", "running", "waiting", "wanted")
    return Answer(columns, [rows[name] for name in sorted(rows)], ("priority",))


def recoveries(plan: Plan, _: Observed, __: Desired) -> Answer:
    """The newest recoveries of every job, newest first: cause, level, duration and loss."""
    found: list[tuple[Recovery, dict[str, Any]]] = []
    for key, memory in plan.history.jobs.items():
        namespace, kind, name = key.split("/", 2)
        for one in memory.recoveries:
            row = {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "time": rfc3339(one.at / 1000),
                "reason": one.reason,
                "codes": list(one.codes),
                "level": one.level,
                "chips": one.chips,
                "state": "done" if one.back else "under way",
                "seconds": _seconds(one.back - one.at) if one.back else None,
                "lostChipHours": round(cost(one) / 3600, 2) if one.back else None,
                "by": "cost" if one.estimates else "ladder",
            }
            found.append((one, row))
    found.sort(key=lambda item: (-item[0].at, item[1]["namespace"], item[1]["kind"], item[1]["name"]))
    columns = ("namespace", "name", "time", "reason", "codes", "level", "state", "seconds", "lostChipHours")
    return Answer(columns, [row for _, row in found], ("kind", "chips", "by"))


def _seconds(milliseconds: int) -> float:
    """Whole seconds, and the milliseconds of what takes less than ten: processes recover in tenths of a second."""
    return milliseconds // 1000 if milliseconds >= 10_000 else milliseconds / 1000


def revisions(_: Plan, observed: Observed, __: Desired) -> Answer:
    """The accepted revisions of every shard's repository, newest first, as ``belay-revisions`` keeps them."""
    rows: list[dict[str, Any]] = []
    stands = _stands(observed)
    for key, raw in observed.objects.items():
        if (key.kind, key.namespace) != ("ConfigMap", names.SYSTEM) or key.name.split(".")[0] != names.REVISIONS:
            continue
        shard = key.name.partition(".")[2] or names.MAIN_SHARD
        try:
            entries = revisionlog.parse(raw).entries
        except WireError as error:
            rows.append({"revision": "", "shard": shard, "time": None, "state": "unreadable", "subject": str(error)})
            continue
        for entry in reversed(entries):
            rows.append(
                {
                    "revision": entry.revision,
                    "shard": shard,
                    "time": rfc3339(entry.time / 1000) if entry.time else None,
                    "state": stands if entry.revision == observed.applied_revision else "accepted",
                    "verified": entry.verified,
                    "signer": entry.signer,
                    "subject": _subject(entry.commit_bytes()),
                    "source": entry.source,
                }
            )
    return Answer(("revision", "time", "state", "verified", "signer", "subject"), rows, ("shard", "source"))


def _stands(observed: Observed) -> str:
    """How the newest applied revision stands, by what the engine publishes of its objects."""
    published = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)) or {}
    counts = read_status([published]).objects
    rest = ", ".join(f"{number} {word}" for key, word in _NOT_IN_FORCE if (number := counts.get(key, 0)))
    return f"in force but for {rest}" if rest else "in force"


_NOT_IN_FORCE: Final = (("refused", "refused"), ("heldBack", "held back"), ("waiting", "on the way"))
RECORDS: Final[dict[str, Callable[[Plan, Observed, Desired], Answer]]] = {
    "queues": queues,
    "recoveries": recoveries,
    "revisions": revisions,
}


def _queue(name: str, state: str, weight: Any, priority: Any, capability: Mapping[str, Any]) -> dict[str, Any]:
    most = [str(amount) for resource, amount in sorted(capability.items()) if str(resource).startswith(_NPU)]
    return {
        "queue": name,
        "state": state,
        "weight": weight,
        "priority": priority,
        "capability": "+".join(most) or None,
        "used": 0,
        "running": 0,
        "waiting": 0,
        "wanted": 0,
    }


def _subject(commit: bytes) -> str:
    """The first line of a commit's message; empty without the commit."""
    _, _, message = commit.partition(b"\n\n")
    return message.strip().split(b"\n")[0][: 4 * _SUBJECT].decode("utf-8", "replace")[:_SUBJECT]

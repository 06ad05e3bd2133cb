"""Answers of `belay get` about queues, recoveries and accepted revisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from engine.cli.answers import Answer
from engine.documents import Desired
from engine.gangs.forming import pending_by_gang
from engine.gangs.grouping import group
from engine.model.cluster import Observed, Pod
from engine.model.costs import cost, so_far
from engine.model.diagnostics import ObjectKey
from engine.model.history import Recovery
from engine.model.plan import Plan
from engine.model.times import rfc3339
from engine.plan import QueueState, queues_of
from engine.status.status_reader import read_status
from engine.wire import names, revisionlog
from engine.wire.errors import WireError

_NPU: Final = "huawei.com/"
_SUBJECT: Final = 120
_SYNC: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)


def queues(plan: Plan, observed: Observed, desired: Desired) -> Answer:
    """Every queue of the cluster, of the settings, or of a job, with what is in force: the settings come before the
    Queue object. Its chips per resource, and the jobs that run and wait."""
    rows = {name: _queue(one) for name, one in queues_of(desired, observed).items()}
    gangs, _ = group(observed)
    waiting = pending_by_gang(plan.pending, gangs)
    for key, gang in gangs.items():
        row = rows.setdefault(gang.queue, _queue(QueueState(gang.queue)))
        pods = [observed.pods[name] for name in gang.pods if name in observed.pods and observed.pods[name].count]
        holding = [pod for pod in pods if pod.holds_chips]
        _add(row["used"], holding)
        row["running"] += bool(holding)
        if key in waiting:
            row["waiting"] += 1
            _add(row["wanted"], [pod for pod in pods if not pod.node and not pod.finished])
    columns = ("queue", "state", "weight", "capability", "used", "running", "waiting", "wanted")
    return Answer(columns, [rows[name] for name in sorted(rows)], ("priority", "declaredBy"))


def _add(total: dict[str, int], pods: Sequence[Pod]) -> None:
    for pod in pods:
        total[pod.resource] = total.get(pod.resource, 0) + pod.count


def recoveries(plan: Plan, _: Observed, __: Desired) -> Answer:
    """The newest recoveries of every job, newest first: cause, level, duration and loss; of one under way, so far."""
    now = max(round(plan.now * 1000), 0)
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
                "seconds": _seconds((one.back or now) - one.at),
                "lostChipHours": round((cost(one) if one.back else so_far(one, now)) / 3600, 2),
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
            author, subject = entry.said()
            rows.append(
                {
                    "revision": entry.revision,
                    "shard": shard,
                    "time": rfc3339(entry.time / 1000) if entry.time else None,
                    "state": stands if entry.revision == observed.applied_revision else "accepted",
                    "verified": entry.verified,
                    "signer": entry.signer,
                    "author": author[:_SUBJECT],
                    "subject": subject[:_SUBJECT],
                    "source": entry.source,
                }
            )
    refused = _refused_whole(observed)
    columns = ("revision", "time", "state", "author", "signer", "subject")
    return Answer(columns, [*refused, *rows], ("verified", "shard", "source"))


def _refused_whole(observed: Observed) -> list[dict[str, Any]]:
    """The newest revision, where it was tried and nothing of it came into force."""
    published = read_status([observed.objects.get(_SYNC) or {}])
    if not published.attempted or published.attempted == published.applied:
        return []
    why = next((str(one.get("reason")) for one in published.conditions if one.get("type") == "Ready"), "")
    state = f"refused: {why}" if why else "refused"
    return [{"revision": published.attempted, "shard": names.MAIN_SHARD, "time": None, "state": state, "subject": ""}]


def _stands(observed: Observed) -> str:
    """How the newest applied revision stands, by what the engine publishes of its objects."""
    published = observed.objects.get(_SYNC) or {}
    counts = read_status([published]).objects
    rest = ", ".join(f"{number} {word}" for key, word in _NOT_IN_FORCE if (number := counts.get(key, 0)))
    return f"in force but for {rest}" if rest else "in force"


_NOT_IN_FORCE: Final = (("refused", "refused"), ("heldBack", "held back"), ("waiting", "on the way"))
RECORDS: Final[dict[str, Callable[[Plan, Observed, Desired], Answer]]] = {
    "queues": queues,
    "recoveries": recoveries,
    "revisions": revisions,
}


def _queue(one: QueueState) -> dict[str, Any]:
    return {
        "queue": one.name,
        "state": one.state,
        "weight": one.weight,
        "priority": one.priority,
        "declaredBy": "SchedulingSettings" if one.declared else "Queue",
        "capability": {name: most for name, most in one.capability.items() if name.startswith(_NPU)},
        "used": {},
        "running": 0,
        "waiting": 0,
        "wanted": {},
    }

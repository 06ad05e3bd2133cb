"""Volcano's Queues: the ``default`` one, their ``.status``, and Commands that open and close them.

Sources: github.com/volcano-sh/volcano, packages pkg/controllers/queue (state machine, counts of PodGroups by phase),
pkg/scheduler/cache (the default queue) and pkg/cli/queue (Commands).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.gangs.job_status import merge_patch
from belay.engine.model.actions import CreateObject, DeleteObject, Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.phases import PodGroupPhase
from belay.engine.model.plan_cache import CacheKey, NoOps
from belay.engine.model.quantities import text_of
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, QUEUE_CRD
from belay.engine.plan.jobs.volcanojob_commands import API as COMMAND_API
from belay.engine.plan.jobs.volcanojob_commands import KIND as COMMAND
from belay.engine.plan.queue.queues import DEFAULT_QUEUE, OPEN, ROOT_QUEUE, Amounts, add, sums_of
from belay.engine.wire.names import MAIN_SHARD

RULE: Final = "queue"
QUEUE: Final = "Queue"
CLOSING: Final = "Closing"
CLOSED: Final = "Closed"
OPEN_QUEUE: Final = "OpenQueue"
CLOSE_QUEUE: Final = "CloseQueue"
MISSING: Final = "QueueMissing"
CHANGED: Final = "QueueChanged"
#: Counted phases of PodGroups, by the field of a Queue's status.
_COUNTED: Final = {
    "pending": PodGroupPhase.PENDING,
    "inqueue": PodGroupPhase.INQUEUE,
    "running": PodGroupPhase.RUNNING,
    "unknown": PodGroupPhase.UNKNOWN,
    "completed": PodGroupPhase.COMPLETED,
}
#: By shard: the snapshot after whose pass every queue was as it should be.
_SETTLED: Final = CacheKey("snapshots whose Queues need no patch", NoOps, limit=16)


def write_status(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    """Create, count, open and close the queues; shard ``main`` does so for all shards."""
    if facts.shard != MAIN_SHARD:
        return
    if not (roles.plays(facts, "schedule") and roles.plays(facts, "expand_volcano_job")):
        return
    inputs = (facts.observed.pods, facts.observed.objects, facts.desired)
    if facts.cache[_SETTLED].holds(facts.shard, inputs):
        return
    before = len(draft.actions), len(draft.diagnostics)
    _all(facts, draft, gangs)
    if before == (len(draft.actions), len(draft.diagnostics)):
        facts.cache[_SETTLED].add(facts.shard, inputs)


def _all(facts: Facts, draft: Draft, gangs: PassGangs) -> None:
    objects = facts.observed.objects
    queues = sorted(key for key in objects if key.kind == QUEUE and key.api_version == POD_GROUP_API)
    if not any(key.name == DEFAULT_QUEUE for key in queues):
        _create_default(facts, draft)
    if not queues:
        return
    counts = _counts(facts)
    used: dict[str, Amounts] = {}
    for gang in gangs.values():
        add(used.setdefault(gang.queue, {}), sums_of(facts, gang)[0])
    asked = _commands(facts)
    for key in queues:
        raw = objects[key]
        if nested_map(raw, "metadata").get("deletionTimestamp"):
            continue
        numbers = counts.get(key.name, {})
        state = _state(draft, key, raw, asked.get(key.name, ()), sum(numbers.values()))
        _write(draft, key, raw, state, numbers, used.get(key.name, {}))


def _create_default(facts: Facts, draft: Draft) -> None:
    """The queue of jobs that name none, where the cluster serves Queues.

    Volcano writes ``reclaimable: true`` into it; Belay takes that for a permission to evict, and leaves it out.
    """
    crd = ObjectKey("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", QUEUE_CRD)
    if crd not in facts.observed.objects or any(queue.name == DEFAULT_QUEUE for queue in _declared(facts)):
        return
    body = {
        "apiVersion": POD_GROUP_API, "kind": QUEUE, "metadata": {"name": DEFAULT_QUEUE}, "spec": {"weight": 1},
    }  # fmt: skip
    draft.actions.append(
        CreateObject(
            reason=MISSING, message="jobs that name no queue belong to Queue default: creating it",
            evidence=Evidence(rule=RULE), api_version=POD_GROUP_API, object_kind=QUEUE, namespace="",
            name=DEFAULT_QUEUE, object=body,
        )
    )  # fmt: skip


def _declared(facts: Facts) -> list[ObjectKey]:
    """Queues in Git: what creates them is there."""
    return [key for key in facts.desired.manifest_index if key.kind == QUEUE]


def _counts(facts: Facts) -> dict[str, dict[str, int]]:
    """PodGroups of each queue by field of its status."""
    field_of: dict[str, str] = {phase.value: field for field, phase in _COUNTED.items()}
    found: dict[str, dict[str, int]] = {}
    for key, raw in facts.observed.objects.items():
        if key.kind != "PodGroup" or key.api_version != POD_GROUP_API:
            continue
        queue = str(nested_map(raw, "spec").get("queue") or DEFAULT_QUEUE)
        phase = str(nested_map(raw, "status").get("phase") or PodGroupPhase.PENDING)
        row = found.setdefault(queue, {})
        field = field_of.get(phase, "unknown")
        row[field] = row.get(field, 0) + 1
    return found


def _commands(facts: Facts) -> dict[str, list[tuple[ObjectKey, Mapping[str, Any]]]]:
    """Commands by the queue that they are about, the oldest first."""
    found: list[tuple[str, ObjectKey, Mapping[str, Any]]] = []
    for key, raw in facts.observed.objects.items():
        if (key.api_version, key.kind) != (COMMAND_API, COMMAND) or nested_map(raw, "target").get("kind") != QUEUE:
            continue
        if not nested_map(raw, "metadata").get("deletionTimestamp"):
            found.append((str(nested_map(raw, "metadata").get("creationTimestamp") or ""), key, raw))
    rows: dict[str, list[tuple[ObjectKey, Mapping[str, Any]]]] = {}
    for _, key, body in sorted(found, key=lambda row: (row[0], row[1])):
        rows.setdefault(str(nested_map(body, "target").get("name")), []).append((key, body))
    return rows


def _state(
    draft: Draft,
    key: ObjectKey,
    raw: Mapping[str, Any],
    asked: tuple[()] | list[tuple[ObjectKey, Mapping[str, Any]]],
    groups: int,
) -> str:
    """The queue's state after its oldest Command; a Command is deleted once the queue shows its effect."""
    state = str(nested_map(raw, "status").get("state") or OPEN)
    if state == CLOSING and not groups:
        state = CLOSED
    uid = nested_map(raw, "metadata").get("uid")
    for command, body in asked:
        action = str(body.get("action") or "")
        meant = nested_map(body, "target").get("uid")
        if meant and uid and meant != uid:
            _delete(draft, command, body, f"was about an earlier Queue {key.name}")
            continue
        if action not in (OPEN_QUEUE, CLOSE_QUEUE) or key.name == ROOT_QUEUE:
            text = (
                f"action {action!r:.60} is not {OPEN_QUEUE} or {CLOSE_QUEUE} of a queue with jobs: delete the Command"
            )
            draft.diagnostics.append(
                Diagnostic("warning", str(command), "", 0, 0, "action", text, PassCode.UNKNOWN_COMMAND)
            )
            continue
        if action == OPEN_QUEUE:
            wanted = OPEN
        else:
            wanted = state if state in (CLOSING, CLOSED) else CLOSING if groups else CLOSED
        if wanted == str(nested_map(raw, "status").get("state") or OPEN):
            _delete(draft, command, body, f"Queue {key.name} is {wanted}")
        return wanted
    return state


def _write(
    draft: Draft, key: ObjectKey, raw: Mapping[str, Any], state: str, numbers: Mapping[str, int], used: Amounts
) -> None:
    old = nested_map(raw, "status")
    new: dict[str, Any] = {name: value for name, value in old.items() if name not in _COUNTED}
    new |= {"state": state, "allocated": {name: text_of(name, used[name]) for name in sorted(used) if used[name]}}
    new |= dict(sorted(numbers.items()))
    if new == old:
        return
    total = ", ".join(f"{count} {name}" for name, count in sorted(numbers.items())) or "no PodGroups"
    uid = str(nested_map(raw, "metadata").get("uid") or "")
    draft.actions.append(
        PatchObject(
            reason=CHANGED, message=f"Queue {key.name} is {state}: {total}", evidence=Evidence(rule=RULE),
            patch_type=PatchType.MERGE, preconditions=Preconditions(uid=uid or None), api_version=key.api_version,
            object_kind=QUEUE, namespace="", name=key.name, patch={"status": merge_patch(old, new)},
        )
    )  # fmt: skip


def _delete(draft: Draft, key: ObjectKey, raw: Mapping[str, Any], why: str) -> None:
    uid = str(nested_map(raw, "metadata").get("uid") or "")
    draft.actions.append(
        DeleteObject(
            reason=ActionReason.COMMAND_ISSUED, message=f"Command {key.namespace}/{key.name}: {why}: deleting it",
            evidence=Evidence(rule=RULE), preconditions=Preconditions(uid=uid or None), api_version=key.api_version,
            object_kind=key.kind, namespace=key.namespace, name=key.name,
        )
    )  # fmt: skip

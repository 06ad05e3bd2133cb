"""Shared by the expansions of all job kinds: a job's pods, memory and owner references, and removing pods.

A job's pods come in *versions*: every round of re-creation has the next number. The memory keeps the current version,
the one last seen complete (``settled``) and the last one to be removed (``killed``), so that a pass recognises a
vanished pod without an event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from belay.engine.gangs.forming import gang_key
from belay.engine.model.actions import (
    CreateObject,
    CreatePod,
    DeleteObject,
    EvictPod,
    Evidence,
    Generate,
    Owner,
    PatchObject,
    PatchType,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.job_options import JobOptions, read_options
from belay.engine.model.rules import RuleKind
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.wire.names import MAIN_SHARD

RULE: Final = RuleKind.EXPANSION.value
VERSION_LABEL: Final = "version"
POD_GROUP_API: Final = "scheduling.volcano.sh/v1beta1"
_POD_GROUP_CRD: Final = "podgroups.scheduling.volcano.sh"
QUEUE_CRD: Final = "queues.scheduling.volcano.sh"
_CRD_API: Final = "apiextensions.k8s.io/v1"

#: Roles and the labels that show a live component of MindCluster or Volcano holding them.


@dataclass(slots=True)
class JobObject:
    """One job object: its key, raw body and metadata."""

    key: ObjectKey
    raw: dict[str, Any]
    metadata: Mapping[str, Any]

    @property
    def uid(self) -> str:
        """``metadata.uid``, empty for a job that only a file holds."""
        return str(self.metadata.get("uid") or "")

    @property
    def gang(self) -> str:
        """Key of the job's gang and memory."""
        return gang_key(self.key.api_version, self.key.kind, self.key.namespace, self.key.name)

    @property
    def labels(self) -> dict[str, str]:
        """The job's labels."""
        return string_map(self.metadata.get("labels"))

    @property
    def annotations(self) -> dict[str, str]:
        """The job's annotations."""
        return string_map(self.metadata.get("annotations"))

    @property
    def options(self) -> JobOptions:
        """What the job says by them."""
        return read_options(self.labels, self.annotations)

    @property
    def status(self) -> dict[str, Any]:
        """The status in the snapshot."""
        return nested_map(self.raw, "status")

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """The status' conditions."""
        return nested_list(self.status, "conditions")

    @property
    def deleting(self) -> bool:
        """Whether Kubernetes is deleting it; garbage collection then removes its dependents."""
        return bool(self.metadata.get("deletionTimestamp"))

    def owner_references(self) -> list[dict[str, Any]]:
        """The owner reference that makes the job an object's controller; empty while the job has no uid."""
        if not self.uid:
            return []
        return [
            {
                "apiVersion": self.key.api_version,
                "kind": self.key.kind,
                "name": self.key.name,
                "uid": self.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


@dataclass(slots=True)
class ExpansionContext:
    """The expansion's view of one pass: what it starts from, objects by kind, pods by their controller."""

    facts: Facts
    draft: Draft
    nodes: PassNodes
    gangs: PassGangs
    undeclared: AbstractSet[ObjectKey]
    kinds: dict[tuple[str, str], list[ObjectKey]]
    pods: dict[tuple[str, str, str], list[Pod]]
    pod_groups: bool
    queues: frozenset[str] | None
    one_shard: bool
    made_groups: set[tuple[str, str]] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    _pods_of: dict[ObjectKey, list[Pod]] = field(default_factory=dict)
    _live_volcano: bool | None = None

    @property
    def default_scheduler(self) -> str:
        """``schedulerName`` of AscendJobs that name none."""
        return self.facts.desired.settings.default_scheduler

    @property
    def live_volcano(self) -> bool:
        """Whether a scheduler of Volcano runs."""
        if self._live_volcano is None:
            self._live_volcano = "schedule" in roles.holders(self.facts.observed)
        return self._live_volcano

    @staticmethod
    def of(
        facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, undeclared: AbstractSet[ObjectKey]
    ) -> ExpansionContext:
        """Index the snapshot once for all jobs."""
        kinds: dict[tuple[str, str], list[ObjectKey]] = {}
        for key in facts.observed.objects:
            kinds.setdefault((key.api_version, key.kind), []).append(key)
        pods: dict[tuple[str, str, str], list[Pod]] = {}
        for pod in facts.observed.pods.values():
            if pod.owner_kind:
                pods.setdefault((pod.namespace, pod.owner_kind, pod.owner_name), []).append(pod)
        one_shard = all(pool.document.spec.shard == MAIN_SHARD for pool in facts.desired.pools)
        return ExpansionContext(
            facts,
            draft,
            nodes,
            gangs,
            undeclared,
            kinds,
            pods,
            _has_pod_groups(kinds),
            _queues(facts, kinds),
            one_shard,
        )

    def jobs(self, api_version: str, kind: str) -> list[JobObject]:
        """The objects of a kind, by name."""
        objects = self.facts.observed.objects
        found = ((key, objects[key]) for key in sorted(self.kinds.get((api_version, kind), ())))
        return [JobObject(key, raw, nested_map(raw, "metadata")) for key, raw in found]

    def pods_of(self, job: JobObject) -> list[Pod]:
        """Pods that the job controls, by name, without those of an earlier job of the same name."""
        known = self._pods_of.get(job.key)
        if known is None:
            found = self.pods.get((job.key.namespace, job.key.kind, job.key.name), ())
            group, uid = job.key.api_version.partition("/")[0], job.uid
            known = [
                pod
                for pod in found
                if pod.owner_api.partition("/")[0] == group and (not uid or pod.owner_uid in ("", uid))
            ]
            known.sort(key=lambda pod: pod.name)
            self._pods_of[job.key] = known
        return known

    def object(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """A live object, None when there is none."""
        return self.facts.observed.objects.get(ObjectKey(api_version, kind, namespace, name))

    def plays(self, role: str) -> bool:
        """Whether Belay plays a role: ``on``, or ``auto`` and no live component holds it."""
        return roles.plays(self.facts, role)

    def memory(self, job: JobObject) -> JobMemory:
        """The job's memory; a new job of an old name starts with an empty one."""
        known = self.draft.memory.jobs.get(job.gang)
        if known is None or (known.uid and job.uid and known.uid != job.uid):
            return JobMemory(uid=job.uid)
        return known if known.uid == job.uid else msgspec.structs.replace(known, uid=job.uid)

    def remember(self, job: JobObject, memory: JobMemory) -> None:
        """Store a job's memory if it has changed."""
        if self.draft.memory.jobs.get(job.gang) != memory:
            self.draft.memory.jobs[job.gang] = memory

    def evidence(self, job: JobObject) -> Evidence:
        """The place of the job's manifest in Git, if it came from Git."""
        manifest = self.facts.desired.manifest_index.get(job.key)
        if manifest is None:
            return Evidence(rule=RULE)
        origin = manifest.origin
        return Evidence(rule=RULE, file=origin.file, line=origin.line, revision=self.facts.desired.revision)

    def warn(self, job: JobObject, where: str, message: str, code: PassCode) -> None:
        """Report a problem of a job as a warning."""
        self.draft.diagnostics.append(Diagnostic("warning", str(job.key), "", 0, 0, where, message, code))

    def info(self, job: JobObject, message: str, code: PassCode) -> Diagnostic:
        """An informational diagnostic about a job."""
        return Diagnostic("info", str(job.key), "", 0, 0, "", message, code)

    def create_object(
        self, job: JobObject, body: dict[str, Any], reason: str, message: str, *, generate: Generate | None = None
    ) -> None:
        """Plan an object that belongs to a job."""
        metadata = body["metadata"]
        self.draft.actions.append(
            CreateObject(
                reason=reason,
                message=message,
                evidence=self.evidence(job),
                api_version=body["apiVersion"],
                object_kind=body["kind"],
                namespace=metadata.get("namespace", ""),
                name=metadata["name"],
                object=body,
                generate=generate,
            )
        )

    def create_pod(self, job: JobObject, body: dict[str, Any], reason: str, message: str) -> None:
        """Plan a pod of a job."""
        self.draft.actions.append(
            CreatePod(
                reason=reason,
                message=message,
                evidence=self.evidence(job),
                preconditions=Preconditions(owner_uid=job.uid or None),
                namespace=job.key.namespace,
                pod=body["metadata"]["name"],
                owner=Owner(job.key.kind, job.key.name),
                object=body,
            )
        )

    def remove_pod(self, job: JobObject, pod: Pod, reason: str, message: str) -> None:
        """Remove a pod: evict it while it may run, delete it if it has ended or was never bound."""
        if pod.deleting is not None or pod.key in self.draft.evicting or pod.key in self.removed:
            return
        self.removed.add(pod.key)
        if pod.finished or not pod.node:
            self._delete(job, ObjectKey("v1", "Pod", pod.namespace, pod.name), pod.uid, reason, message)
            return
        self.draft.evicting.add(pod.key)
        self.draft.actions.append(
            EvictPod(
                reason=reason,
                message=message,
                evidence=self.evidence(job),
                preconditions=Preconditions(uid=pod.uid),
                namespace=pod.namespace,
                pod=pod.name,
                grace_period_seconds=pod.grace_seconds,
                force=False,
                owner=Owner(job.key.kind, job.key.name),
                budget_unit=job.gang,
            )
        )

    def delete(self, job: JobObject, key: ObjectKey, reason: str, message: str) -> None:
        """Plan the deletion of an object, if it exists and the job controls it."""
        raw = self.facts.observed.objects.get(key)
        if raw is None or nested_map(raw, "metadata").get("deletionTimestamp"):
            return
        if key != job.key and job.uid and not _controlled_by(raw, job.uid):
            return
        self._delete(job, key, str(nested_map(raw, "metadata").get("uid") or ""), reason, message)

    def delete_command(self, job: JobObject, key: ObjectKey, uid: str, reason: str, message: str) -> None:
        """Plan the deletion of an object that asked something of the job and belongs to no one."""
        self._delete(job, key, uid, reason, message)

    def _delete(self, job: JobObject, key: ObjectKey, uid: str, reason: str, message: str) -> None:
        self.draft.actions.append(
            DeleteObject(
                reason=reason,
                message=message,
                evidence=self.evidence(job),
                preconditions=Preconditions(uid=uid or None),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
            )
        )

    def patch_status(self, job: JobObject, patch: Mapping[str, Any], reason: str, message: str) -> None:
        """Plan a change of the job's status (a JSON merge patch)."""
        self.patch(job, job.key, {"status": dict(patch)}, reason, message, uid=job.uid)

    def patch(
        self, job: JobObject, key: ObjectKey, patch: Mapping[str, Any], reason: str, message: str, *, uid: str = ""
    ) -> None:
        """Plan a JSON merge patch of the job or of an object that belongs to it."""
        self.draft.actions.append(
            PatchObject(
                reason=reason,
                message=message,
                evidence=self.evidence(job),
                patch_type=PatchType.MERGE,
                preconditions=Preconditions(uid=uid or None),
                api_version=key.api_version,
                object_kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                patch=dict(patch),
            )
        )


def next_round(
    memory: JobMemory, expected: Sequence[str], pods: Collection[Pod], version_of: Mapping[str, int]
) -> tuple[JobMemory, bool]:
    """The memory after this snapshot, and whether this pass begins a new round.

    A round ends when one of its pods is being deleted, or has vanished after all had been seen.

    Args:
        expected: names of the pods that the job asks for.
        version_of: each pod's version by pod key, -1 where unknown.

    Source: component/ascend-operator/pkg/controllers/v1/ascendjob_controller.go (onPodDeleteFunc).
    """
    leaving = {pod.name for pod in pods if pod.deleting is not None or version_of[pod.key] <= memory.killed}
    staying = {pod.name for pod in pods if pod.name not in leaving}
    going = any(pod.deleting is not None and version_of[pod.key] == memory.version for pod in pods)
    complete = bool(staying) and all(name in staying for name in expected)
    vanished = memory.settled == memory.version and not all(n in staying or n in leaving for n in expected)
    if going or vanished:
        return msgspec.structs.replace(memory, version=memory.version + 1), True
    if complete and memory.settled != memory.version:
        return msgspec.structs.replace(memory, settled=memory.version), False
    return memory, False


def forget_gone(context: ExpansionContext, kind: str, api_version: str) -> None:
    """Drop the memory of jobs of a kind that no longer exist and have no pods."""
    memory = context.draft.memory.jobs
    for gang in [gang for gang in memory if gang.split("/", 2)[1] == kind]:
        namespace, _, name = gang.split("/", 2)
        known = ObjectKey(api_version, kind, namespace, name) in context.facts.observed.objects
        if not known and (namespace, kind, name) not in context.pods:
            del memory[gang]


def _controlled_by(raw: Mapping[str, Any], uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in nested_list(raw, "metadata", "ownerReferences"))


def _has_pod_groups(kinds: Mapping[tuple[str, str], list[ObjectKey]]) -> bool:
    crds = kinds.get((_CRD_API, "CustomResourceDefinition"), ())
    return (POD_GROUP_API, "PodGroup") in kinds or any(key.name == _POD_GROUP_CRD for key in crds)


def _queues(facts: Facts, kinds: Mapping[tuple[str, str], list[ObjectKey]]) -> frozenset[str] | None:
    """Names of the existing queues, None when the snapshot holds none; ``default`` always exists."""
    found = kinds.get((POD_GROUP_API, "Queue"), ())
    crds = kinds.get((_CRD_API, "CustomResourceDefinition"), ())
    if not found and not any(key.name == QUEUE_CRD for key in crds):
        return None
    declared = {queue.name for queue in facts.desired.settings.queues}
    return frozenset({"default"} | {key.name for key in found} | declared)

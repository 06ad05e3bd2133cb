"""Which job evidence from logs belongs to: pods of a failed job are gone or renamed by then."""

from __future__ import annotations

from belay.engine.gangs.forming import gang_key
from belay.engine.gangs.owners import JOB_KINDS, POD_GROUP_APIS
from belay.engine.model.cluster import Observed
from belay.engine.model.log_evidence import PodEvidence


def job_of(evidence: PodEvidence) -> str:
    """The key of the gang that the pod belonged to, by the rules by which live pods form gangs."""
    namespace, kind, owner = evidence.namespace, evidence.kind, evidence.owner
    suffix = f"-{evidence.template_hash}"
    if kind == "ReplicaSet" and evidence.template_hash and owner.endswith(suffix):
        return gang_key("apps/v1", "Deployment", namespace, owner.removesuffix(suffix))
    if kind in JOB_KINDS:
        return gang_key(evidence.api_version, kind, namespace, owner)
    if evidence.group:
        return gang_key(POD_GROUP_APIS[0], "PodGroup", namespace, evidence.group)
    return gang_key("v1", "Pod", namespace, evidence.pod)


def by_job(observed: Observed) -> dict[str, tuple[PodEvidence, ...]]:
    """The evidence of each job; also under its PodGroup, which several workloads may share."""
    found: dict[str, list[PodEvidence]] = {}
    for pods in observed.evidence.values():
        for one in pods:
            keys = {job_of(one)}
            if one.group:
                keys.add(gang_key(POD_GROUP_APIS[0], "PodGroup", one.namespace, one.group))
            for key in keys:
                found.setdefault(key, []).append(one)
    return {key: tuple(ones) for key, ones in sorted(found.items())}

"""ResourceClaims (DRA) as kube-controller-manager keeps them: made from templates for pods, given back after the last.

Source: kubernetes/pkg/controller/resourceclaim/controller.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model.labels import DELETE_PROTECTION, POD_CLAIM_NAME
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write, create, delete, patch, patch_status

KIND: Final = "ResourceClaim"


def of_pod(pod: Json, templates: Mapping[str, Json], claims: Sequence[Json]) -> Reconciled:
    """Create the claims that a pod gets from templates, and name them in its status once they are there.

    ``templates`` and ``claims`` are those of its namespace; a template that is missing is waited for.
    """
    rows = [row for row in wanted(pod) if row.get("resourceClaimTemplateName")]
    if not rows or not o.active(pod):
        return Reconciled()
    own = {
        (one["metadata"].get("annotations") or {}).get(POD_CLAIM_NAME): one["metadata"]["name"]
        for one in claims
        if o.controller_uid(one) == pod["metadata"]["uid"] and not o.deleting(one)
    }
    missing = [row for row in rows if row["name"] not in own and row["resourceClaimTemplateName"] in templates]
    if missing:
        return Reconciled(
            tuple(create(_claim(pod, row["name"], templates[row["resourceClaimTemplateName"]])) for row in missing)
        )
    named = [{"name": row["name"], "resourceClaimName": own[row["name"]]} for row in rows if row["name"] in own]
    known = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return Reconciled((patch_status(pod, "Pod", {"resourceClaimStatuses": named}),)) if named != known else Reconciled()


def of_claim(claim: Json, pods: Mapping[str, Json]) -> Reconciled:
    """Take ended pods from a claim's users, give its devices back after the last, delete it with the pod of its making.

    ``pods``: all pods by UID.
    """
    status, meta = claim.get("status") or {}, claim["metadata"]
    users = status.get("reservedFor") or []
    kept = [row for row in users if row.get("resource") != "pods" or _lives(pods.get(str(row.get("uid"))))]
    writes: list[Write] = []
    if len(kept) < len(users):
        gone: Json = {"allocation": None, "reservedFor": None} if not kept else {"reservedFor": kept}
        writes.append(_guarded(patch_status(claim, KIND, gone), claim))
    finalizers = meta.get("finalizers") or []
    if (
        not kept
        and DELETE_PROTECTION in finalizers
        and (writes or (o.deleting(claim) and not status.get("allocation")))
    ):
        rest = [one for one in finalizers if one != DELETE_PROTECTION]
        writes.append(patch(claim, KIND, {"metadata": {"finalizers": rest or None}}))
    owner = o.controller_uid(claim)
    made_for_pod = POD_CLAIM_NAME in (meta.get("annotations") or {})
    if made_for_pod and owner and not _lives(pods.get(owner)) and not o.deleting(claim):
        writes.append(delete(claim, KIND))
    return Reconciled(tuple(writes))


def wanted(pod: Json) -> list[Json]:
    """The claims that a pod names."""
    rows = (pod.get("spec") or {}).get("resourceClaims") or ()
    return [row for row in rows if isinstance(row, dict) and row.get("name")]


def _lives(pod: Json | None) -> bool:
    return pod is not None and not o.finished(pod)


def _guarded(write: Write, claim: Json) -> Write:
    """The write, refused when the claim has changed meanwhile: a new user must not be overwritten."""
    version = claim["metadata"].get("resourceVersion")
    write.body["metadata"] = {**write.body.get("metadata", {}), "resourceVersion": version}
    return write


def _claim(pod: Json, name: str, template: Json) -> Json:
    meta = pod["metadata"]
    spec: Json = template.get("spec") or {}
    head: dict[str, Any] = spec.get("metadata") or {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True,
             "blockOwnerDeletion": True}  # fmt: skip
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": KIND,
        "metadata": {
            "generateName": f"{meta['name']}-{name}-",
            "namespace": meta["namespace"],
            "labels": head.get("labels") or {},
            "annotations": {**(head.get("annotations") or {}), POD_CLAIM_NAME: name},
            "ownerReferences": [owner],
        },
        "spec": spec.get("spec") or {},
    }

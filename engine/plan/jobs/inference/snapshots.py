"""Container snapshots of inference services: the first instance saves one, later containers go on from it.

The engine marks which pods save, and takes instances into service; agents make the checkpoints
(agents/node/hardware/snapshots.py) and the container runtime restores them. Whether a snapshot is there is kept in
``snapshot-metadata-<instance>``. Source: component/infer-operator/pkg/snapshot and pkg/common/snapshot_utils.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    CONTAINER_SNAPSHOT,
    INFERENCE_MANAGED,
    INSTANCE_TEMPLATE,
    SNAPSHOT_ACTIVE,
    SNAPSHOT_MODE,
    SNAPSHOT_TEMPLATE,
)
from belay.engine.model.pod_options import snapshot_result
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map, string_map
from belay.engine.plan.jobs.inference.serving import ServingContext, ServingInstance, ServingRole, size
from belay.engine.plan.jobs.pod_template import containers, field_ref, plain, set_env

SAVE: Final = "save"
LOAD: Final = "load"
FOLDER: Final = "host_snapshot_dir_path"
PATH: Final = "host_snapshot_path"
POD_NAME: Final = "pod_name"
RESTORED: Final = "GRUS_SNAPSHOT_RESTORED_FLAG"
RESTORED_KEY: Final = "GrusSnapshotRestoredFlag"
METADATA: Final = "snapshot_metadata.json"
PREFIX: Final = "snapshot-metadata-"
VOLUME: Final = "metadata"
MOUNT: Final = "/snapshot/configmap"
DONE: Final = "done"
#: Seconds that the first instance may take to save (the infer operator's ``-snapshotTimeout``, 60 min).
TIMEOUT: Final = 3600.0


def is_on(role: ServingRole) -> bool:
    """Whether the role asks for snapshots; only StatefulSets have them."""
    own = {**role.job.labels, **string_map(nested_map(role.spec, "metadata").get("labels"))}
    return own.get(CONTAINER_SNAPSHOT) == "true" and role.kind == "StatefulSet"


def active(role: ServingRole) -> dict[str, str]:
    """What Services select besides: an instance that saves does not serve until it has saved."""
    return {SNAPSHOT_ACTIVE: "true"} if is_on(role) and _folder(nested_map(role.spec, "spec", "template")) else {}


def prepare(role: ServingRole, index: int, template: dict[str, Any]) -> None:
    """Add to the template what containers, agents and runtime read."""
    folder = _folder(template)
    if not is_on(role) or not folder:
        return
    config_map = f"{PREFIX}{role.instance_name(index)}"
    reference = {"name": RESTORED, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": RESTORED_KEY}}}
    path = f"{folder.rstrip('/')}/{role.job.key.namespace}/{role.job.key.name}"
    if role.snapshot_base not in ("", role.pods_digest):
        # never go on, in a container of this template, from the memory of another one
        path = f"{path}-{role.pods_digest}"
    rows = containers(nested_map(template, "spec"))
    for row in rows:
        set_env(row, [reference, plain(PATH, path), field_ref(POD_NAME, "metadata.name")])
    template["metadata"]["labels"][CONTAINER_SNAPSHOT] = "true"
    inner = template["spec"]
    volume = {"name": config_map, "items": [{"key": METADATA, "path": METADATA}]}
    inner["volumes"] = [*(inner.get("volumes") or []), {"name": VOLUME, "configMap": volume}]
    mount = {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}
    rows[0]["volumeMounts"] = [*(rows[0].get("volumeMounts") or []), mount]


def base_of(serving: ServingContext, namespace: str, first: str) -> str:
    """The template whose snapshot is in the folder that the infer operator names; empty while nothing is recorded."""
    raw = serving.context.facts.observed.objects.get(ObjectKey("v1", "ConfigMap", namespace, f"{PREFIX}{first}"))
    return string_map(nested_map(raw, "metadata").get("annotations")).get(SNAPSHOT_TEMPLATE, "") if raw else ""


def keep(serving: ServingContext, role: ServingRole) -> None:
    """Keep the ConfigMaps of the role's instances, and move its pods from saving to serving."""
    if not is_on(role):
        return
    if not _folder(nested_map(role.spec, "spec", "template")):
        where = "spec.template.spec.containers[0].env"
        text = f"snapshots need the variable {FOLDER} with their folder; none is made"
        serving.context.warn(role.job, where, text, PassCode.NO_SNAPSHOT)
        return
    for one in role.declared:
        _keep_config_map(serving, role, one)
    first = role.instances.get(0)
    if first is None:
        return
    saved = _is_saved(serving, role)
    if not saved and first.standing and first.current:
        saved = _watch_first(serving, role, first)
    for one in role.instances.values():
        for pod in one.pods:
            if pod.deleting is None and not (one is first and not saved and one.current):
                _mark(serving, role, pod, LOAD if saved else "", serves=True)


def _watch_first(serving: ServingContext, role: ServingRole, first: ServingInstance) -> bool:
    """Let the first instance save; says whether it has saved. One that cannot save serves without a snapshot."""
    pods, wanted = [pod for pod in first.pods if pod.deleting is None], size(nested_map(first.live or {}, "spec"))
    done = len(pods) >= wanted > 0 and all(map(snapshot_result, pods))
    if done:
        for pod in pods:
            _mark(serving, role, pod, SAVE, serves=True)
        _record(serving, role)
        return True
    late = [pod for pod in pods if pod.started is not None and serving.context.facts.now - pod.started > TIMEOUT]
    failed = [pod for pod in pods if snapshot_result(pod) is False]
    if late or failed:
        why = f"pod {failed[0].name} could not save" if failed else f"it has not saved within {TIMEOUT / 60:.0f} min"
        text = f"instance {first.key.name} serves without a snapshot: {why}; see the node agent's log"
        serving.context.warn(role.job, f"metadata.labels[{CONTAINER_SNAPSHOT}]", text, PassCode.NO_SNAPSHOT)
    for pod in pods:
        _mark(serving, role, pod, SAVE, serves=bool(late or failed))
    return False


def _mark(serving: ServingContext, role: ServingRole, pod: Pod, mode: str, *, serves: bool) -> None:
    """Set a pod's mode once, and the label by which Services find it."""
    metadata: dict[str, Any] = {}
    if mode and SNAPSHOT_MODE not in pod.annotations:
        metadata["annotations"] = {SNAPSHOT_MODE: mode}
    if serves and pod.labels.get(SNAPSHOT_ACTIVE) != "true":
        metadata["labels"] = {SNAPSHOT_ACTIVE: "true"}
    if metadata:
        key = ObjectKey("v1", "Pod", pod.namespace, pod.name)
        what = " and ".join([*([f"mode {mode}"] if "annotations" in metadata else []),
                             *(["serves"] if "labels" in metadata else [])])  # fmt: skip
        text = f"{role.job.key}: pod {pod.name}: {what}"
        serving.context.patch(role.job, key, {"metadata": metadata}, ActionReason.SNAPSHOT, text, uid=pod.uid)


def _keep_config_map(serving: ServingContext, role: ServingRole, one: ServingInstance) -> None:
    """Create an instance's ConfigMap; begin again in it when the template has changed."""
    context, namespace = serving.context, role.job.key.namespace
    name = f"{PREFIX}{one.key.name}"
    live = context.object("v1", "ConfigMap", namespace, name)
    data = {METADATA: _metadata(role, one.key.name, ""), RESTORED_KEY: "false"}
    notes = {INSTANCE_TEMPLATE: role.pods_digest, SNAPSHOT_TEMPLATE: role.snapshot_base or role.pods_digest}
    if live is None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name, "namespace": namespace, "labels": {INFERENCE_MANAGED: "true"}, "annotations": notes,
                **({"ownerReferences": owners} if (owners := role.job.owner_references()) else {}),
            },
            "data": data,
        }  # fmt: skip
        context.create_object(role.job, body, "ConfigMapMissing", f"{role.job.key} wants ConfigMap {name}: creating it")
        return
    carried = string_map(nested_map(live, "metadata").get("annotations"))
    if carried.get(INSTANCE_TEMPLATE) == role.pods_digest or (one.live is not None and not one.current):
        return
    patch: dict[str, Any] = {"metadata": {"annotations": notes}}
    if carried.get(INSTANCE_TEMPLATE):
        patch["data"] = data  # of another template; one without a mark is the infer operator's, and still holds
    key = ObjectKey("v1", "ConfigMap", namespace, name)
    text = f"{role.job.key}: {name} is about the template in force now"
    context.patch(role.job, key, patch, "ConfigMapChanged", text, uid=_uid(live))


def _record(serving: ServingContext, role: ServingRole) -> None:
    """Record in every instance's ConfigMap that there is a snapshot to go on from."""
    context = serving.context
    for one in role.declared:
        name = f"{PREFIX}{one.key.name}"
        live = context.object("v1", "ConfigMap", role.job.key.namespace, name)
        if live is None or not one.current:
            continue
        data = {METADATA: _metadata(role, one.key.name, DONE if one.index == 0 else ""), RESTORED_KEY: "true"}
        key = ObjectKey("v1", "ConfigMap", role.job.key.namespace, name)
        text = f"{role.job.key}: later containers of {one.key.name} go on from the snapshot"
        context.patch(role.job, key, {"data": data}, ActionReason.SNAPSHOT, text, uid=_uid(live))


def _is_saved(serving: ServingContext, role: ServingRole) -> bool:
    """Whether the first instance has saved a snapshot of the template in force."""
    name = f"{PREFIX}{role.instance_name(0)}"
    live = serving.context.object("v1", "ConfigMap", role.job.key.namespace, name)
    if live is None:
        return False
    if (
        string_map(nested_map(live, "metadata").get("annotations")).get(INSTANCE_TEMPLATE, role.pods_digest)
        != role.pods_digest
    ):
        return False
    try:
        found = json.loads(str(nested_map(live, "data").get(METADATA) or "{}")[:4096])
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("checkpoint") == DONE


def _metadata(role: ServingRole, instance: str, checkpoint: str) -> str:
    """The file that containers read, with the keys of the infer operator's ``SnapshotMetaData``."""
    found = {"job_name": instance, "namespace": role.job.key.namespace}
    return json.dumps({**found, **({"checkpoint": checkpoint} if checkpoint else {})}, indent=2)


def _folder(template: Mapping[str, Any]) -> str:
    rows = containers(nested_map(template, "spec"))
    found = rows[0].get("env") if rows else None
    entries = found if isinstance(found, list) else []
    return next((str(e.get("value")) for e in entries if isinstance(e, dict) and e.get("name") == FOLDER), "")


def _uid(raw: Mapping[str, Any]) -> str:
    return str(nested_map(raw, "metadata").get("uid") or "")

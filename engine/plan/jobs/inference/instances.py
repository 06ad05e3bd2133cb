"""One InstanceSet: its instances with their objects, the Services of its role, its autoscaler, its status."""

from __future__ import annotations

from typing import Any, Final

from belay.engine.model.labels import (
    INFERENCE_GANG,
    INFERENCE_INSTANCE_INDEX,
    INFERENCE_ROLE,
    INFERENCE_SERVICE,
    INSTANCE_TEMPLATE,
    ROLLOUT_ANNOTATION,
)
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference import rollout, scaling, snapshots, status, workloads
from belay.engine.plan.jobs.inference.serving import (
    ServingContext,
    ServingInstance,
    ServingRole,
    identity,
    is_gang,
    size,
    template_of,
)
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, JobObject
from belay.engine.plan.jobs.pod_template import misshapen

#: Kubernetes adds a hash of eleven characters to a StatefulSet's name for a label of its pods (63 characters).
_MAX_NAME: Final = 52


def invalid(serving: ServingContext, one: JobObject) -> tuple[str, str] | None:
    """The first field of an InstanceSet that cannot be used, and why; None when there is none."""
    spec = nested_map(one.raw, "spec")
    kind, body = nested_map(spec, "workload"), nested_map(spec, "spec")
    if (kind.get("apiVersion"), kind.get("kind")) not in {(names.APPS, known) for known in names.WORKLOADS}:
        return "spec.workload", f"must be an {names.APPS} Deployment or StatefulSet"
    count = spec.get("replicas")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= names.MAX_REPLICAS:
        return "spec.replicas", f"must be a number from 0 to {names.MAX_REPLICAS}"
    service, role = identity(one)
    for label, value in ((INFERENCE_SERVICE, service), (INFERENCE_ROLE, role)):
        if not value:
            return f"metadata.labels[{label}]", "is missing: an InstanceSet needs the names of its service and its role"
    longest = f"{service}-{role}-{max(0, count - 1)}"
    if kind.get("kind") == "StatefulSet" and len(longest) > _MAX_NAME:
        text = f"instance names such as {longest:.80} have {len(longest)} characters, pods allow at most {_MAX_NAME}"
        return "metadata.name", f"{text}: shorten the names of the service and its roles"
    wrong = misshapen(nested_map(body, "template"))
    if wrong:
        return "spec.spec.template", wrong
    if is_gang(one):
        if not serving.context.pod_groups:
            return f"metadata.labels[{INFERENCE_GANG}]", "the cluster has no PodGroups, so no gang can start"
        if kind.get("kind") == "StatefulSet" and body.get("podManagementPolicy") != "Parallel" and size(body) > 1:
            return "spec.spec.podManagementPolicy", f"must be Parallel: the {size(body)} pods of a gang start together"
    for index, row in enumerate(nested_list(spec, "services")):
        for number, port in enumerate(nested_list(row, "spec", "ports")):
            if nested_map(row, "spec").get("type") == "NodePort" and not port.get("nodePort"):
                return f"spec.services[{index}].spec.ports[{number}].nodePort", "must be set for a NodePort Service"
    return None


def keep(serving: ServingContext, role: ServingRole, turn: int | None) -> None:
    """Create what is missing, change what may change in place, remove what is too much, write the status."""
    waits = turn is not None and role.priority is not None and role.priority > turn
    surge = rollout.surge_of(role)
    for index in range(role.count + (0 if waits else surge)):
        one = role.instances.get(index)
        if one is None or one.live is None:
            if not waits:
                _create(serving, role, index)
        elif one.standing and one.ours:
            _keep_objects(serving, role, one)
            _keep_workload(serving, role, one)
    for body in workloads.role_services(role):
        _keep_service(serving, role, body)
    _remove_surplus(serving, role, surge)
    snapshots.keep(serving, role)
    scaler = scaling.keep(serving, role)
    selector = f"{INFERENCE_SERVICE}={role.service},{INFERENCE_ROLE}={role.name}"
    status.report(
        serving.context,
        role.job,
        role.ready,
        role.count,
        reason="AllWorkLoadReady",
        message="All WorkLoad replicas are ready",
        what="InferService replicas",
        note=_note(role, turn if waits else None),
        more={"labelSelector": selector, "scalingResourceStatus": scaler},
    )


def _note(role: ServingRole, turn: int | None) -> str:
    if turn is not None and role.ready < role.count:
        return f"priority {role.priority} waits until the roles of priority {turn} are ready"
    old = len(role.outdated) + sum(one.going for one in role.declared)
    if not role.outdated:
        return ""
    how = f"paused by annotation {ROLLOUT_ANNOTATION}" if role.paused else "the others follow as these become ready"
    return f"{role.count - old} of {role.count} have the changed template, {how}"


def _create(serving: ServingContext, role: ServingRole, index: int) -> None:
    """Create an instance; a PodGroup that is still there from an earlier one is adapted."""
    one = role.instances.get(index)
    if one is not None:
        _keep_objects(serving, role, one)
    else:
        for body in (*_groups(role, index), *workloads.instance_services(role, index)):
            _create_missing(serving, role, body)
    _create_missing(serving, role, workloads.workload(role, index, surge=index >= role.count))


def _groups(role: ServingRole, index: int) -> list[dict[str, Any]]:
    return [workloads.pod_group(role, index)] if role.gang else []


def _keep_objects(serving: ServingContext, role: ServingRole, one: ServingInstance) -> None:
    """Keep the PodGroup and the Services of an instance."""
    for body in workloads.instance_services(role, one.index):
        _create_missing(serving, role, body)
    for body in _groups(role, one.index):
        live = _create_missing(serving, role, body)
        if live is None or (one.live is not None and not one.current):
            continue  # the group of an instance with an earlier template changes with it
        fields = ("minMember",) if one.live is not None else ("minMember", "minResources")
        change = {f: body["spec"].get(f) for f in fields if body["spec"].get(f) != nested_map(live, "spec").get(f)}
        if change:
            key = serving.key_of(body)
            uid = str(nested_map(live, "metadata").get("uid") or "")
            text = f"{role.job.key}: PodGroup {key.name} follows its instance"
            serving.context.patch(role.job, key, {"spec": change}, "PodGroupChanged", text, uid=uid)


def _keep_workload(serving: ServingContext, role: ServingRole, one: ServingInstance) -> None:
    """Adopt a workload as it runs, or change in place what replaces no pod."""
    assert one.live is not None
    carried = template_of(one.live)
    if carried == role.template or not one.current:
        return
    patch: dict[str, Any] = {"metadata": {"annotations": {INSTANCE_TEMPLATE: role.template}}}
    what = f"{role.kind} {one.key.name}"
    text = f"{role.job.key}: {what} goes on as it runs"
    if carried:
        body = workloads.workload(role, one.index)["spec"]
        still = {"template", "selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"}
        patch["spec"] = {key: value for key, value in body.items() if key not in still}
        text = f"{role.job.key}: {what} changes in place"
    uid = str(nested_map(one.live, "metadata").get("uid") or "")
    serving.context.patch(role.job, one.key, patch, f"{role.kind}Changed", text, uid=uid)


def _keep_service(serving: ServingContext, role: ServingRole, body: dict[str, Any]) -> None:
    """Create a Service that the role declares, and change it with its declaration."""
    live = _create_missing(serving, role, body)
    carried = template_of(live) if live is not None else ""
    if live is None or carried == template_of(body) or not serving.owns(role.job, live):
        return
    patch: dict[str, Any] = {"metadata": {"annotations": {INSTANCE_TEMPLATE: template_of(body)}}}
    if carried:
        patch["spec"] = body["spec"]
    key = serving.key_of(body)
    uid = str(nested_map(live, "metadata").get("uid") or "")
    text = f"{role.job.key}: Service {key.name} follows its declaration"
    serving.context.patch(role.job, key, patch, "ServiceChanged", text, uid=uid)


def _create_missing(serving: ServingContext, role: ServingRole, body: dict[str, Any]) -> dict[str, Any] | None:
    """The live object; None, with its creation planned, where there is none."""
    key = serving.key_of(body)
    live = serving.context.facts.observed.objects.get(key)
    if live is None and key not in serving.created:
        serving.created.add(key)
        text = f"{role.job.key} wants {key.kind} {key.name}: creating it"
        serving.context.create_object(role.job, body, f"{key.kind}Missing", text)
    return live


def _remove_surplus(serving: ServingContext, role: ServingRole, surge: int) -> None:
    """Delete the objects of instances beyond the wanted number."""
    kept = {
        index
        for index, one in role.instances.items()
        if index < role.count or (index < role.count + surge and rollout.is_surge(one))
    }
    kept |= set(range(role.count, role.count + surge)) - role.instances.keys()
    workloads_of = ((names.APPS, kind) for kind in sorted(names.WORKLOADS))
    for api, kind in (*workloads_of, (POD_GROUP_API, "PodGroup"), ("v1", "Service")):
        for key, raw in serving.children(role.job, api, kind):
            index = whole_number(
                string_map(nested_map(raw, "metadata").get("labels")).get(INFERENCE_INSTANCE_INDEX, "")
            )
            if index is not None and index not in kept:
                text = f"{role.job.key} no longer asks for {kind} {key.name}"
                serving.context.delete(role.job, key, ActionReason.SCALED_DOWN, text)

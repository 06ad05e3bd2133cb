"""Inference services level by level, as MindCluster's infer operator makes them.

InferServiceSet → InferServices → one InstanceSet a role → a Deployment or StatefulSet, a Service and (gang) a PodGroup
for every instance. Each level follows from the live objects of the level above, so every pass creates what is missing.
Source: component/infer-operator/pkg/controller/v1.
"""

from __future__ import annotations

import re
from typing import Any, Final

from belay.engine.gangs.job_status import merge_patch
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.labels import (
    INFERENCE_ROLE,
    INFERENCE_SERVICE,
    INFERENCE_SERVICE_ID,
    INFERENCE_SERVICE_INDEX,
    INFERENCE_SET,
    INFERENCE_STRATEGY,
    MAX_UNAVAILABLE,
    ROLLOUT_ANNOTATION,
    SCHEDULE_POLICY,
    SHARD_LABEL,
)
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.inference import instances, rescheduling, rollout, scaling, snapshots, status
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference.rollout import ServiceRollout
from belay.engine.plan.jobs.inference.serving import ServingContext, annotations_of, identity, read
from belay.engine.plan.jobs.inference.workloads import child
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.pod_template import misshapen
from belay.engine.wire.names import MAIN_SHARD

_DNS: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUPER_POD: Final = "-sp"
_MAX_LABEL: Final = 63


def expand(context: ExpansionContext) -> None:
    """Plan the next actions of the snapshot's inference services; none where MindCluster's infer operator runs."""
    if not any((names.API, kind) in context.kinds for kind in names.KINDS) or _operator_runs(context):
        return
    serving = ServingContext.of(context)
    levels = {kind: [one for one in context.jobs(names.API, kind) if not one.deleting] for kind in names.KINDS}
    sets = {(one.key.namespace, one.key.name): one for one in levels[names.SET]}
    services = {(one.key.namespace, one.key.name): one for one in levels[names.SERVICE]}
    for one in levels[names.SET]:
        if _in_shard(context, one):
            _set(serving, one)
    for (namespace, name), one in services.items():
        if _in_shard(context, one, sets.get((namespace, one.labels.get(INFERENCE_SET, "")))):
            serving.services.add((namespace, name))
            _service(serving, one)
    rollouts = _roles(serving, levels[names.INSTANCES], sets, services)
    for group in rollouts:
        for role in group.roles:
            rescheduling.restart_hit(serving, role)
        rescheduling.give_way(serving, group.roles)
    rollout.advance(serving, rollouts)
    for group in rollouts:
        turn = rescheduling.turn_of(group.roles)
        for role in group.roles:
            instances.keep(serving, role, turn)
    rescheduling.release_pods(serving)


def _operator_runs(context: ExpansionContext) -> bool:
    """Whether MindCluster's infer operator is alive."""
    return any(
        pod.namespace == "mindx-dl" and pod.name.startswith("infer-operator") and pod.phase == "Running"
        for pod in context.facts.observed.pods.values()
    )


def _in_shard(context: ExpansionContext, *line: JobObject | None) -> bool:
    """Whether this shard decides about an object: by its label, or that of what it belongs to, else the main shard."""
    if context.one_shard:
        return True
    found = (one.labels.get(SHARD_LABEL) for one in line if one is not None)
    return next((shard for shard in found if shard), MAIN_SHARD) == context.facts.shard


def _set(serving: ServingContext, one: JobObject) -> None:
    context, spec = serving.context, nested_map(one.raw, "spec")
    count = spec.get("replicas", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= names.MAX_SERVICES:
        status.refuse(context, one, "spec.replicas", f"must be 1 to {names.MAX_SERVICES}; no service is created")
        return
    if len(f"{one.key.name}-{count - 1}") > _MAX_LABEL:
        text = f"has {len(one.key.name)} characters: it is a label of what belongs to it, at most {_MAX_LABEL - 3}"
        status.refuse(context, one, "metadata.name", f"{text}; no service is created")
        return
    for text in rollout.malformed(one):
        context.warn(one, "metadata.annotations", text, PassCode.FIELD_IGNORED)
    template = nested_map(spec, "template")
    body = nested_map(template, "spec") if "roles" not in template else template
    for index in range(count):
        labels = {INFERENCE_SET: one.key.name, INFERENCE_SERVICE_INDEX: str(index)}
        if INFERENCE_SERVICE_ID in one.labels:
            labels[INFERENCE_SERVICE_ID] = one.labels[INFERENCE_SERVICE_ID]
        _keep(serving, one, child(one, names.API, names.SERVICE, f"{one.key.name}-{index}", labels, body))
    ready = 0
    for key, raw in serving.children(one, names.API, names.SERVICE):
        number = whole_number(string_map(nested_map(raw, "metadata").get("labels")).get(INFERENCE_SERVICE_INDEX, ""))
        if number is not None and number >= count:
            text = f"{one.key} no longer asks for {names.SERVICE} {key.name}"
            context.delete(one, key, ActionReason.SCALED_DOWN, text)
        else:
            ready += status.is_ready(raw)
    status.report(
        context, one, ready, count, reason="AllInferServicesReady", message="All InferService replicas are ready",
        what="InferService replicas",
    )  # fmt: skip


def _service(serving: ServingContext, one: JobObject) -> None:
    context, spec = serving.context, nested_map(one.raw, "spec")
    roles = nested_list(spec, "roles")
    ordered = nested_map(spec, "schedulingStrategy").get("type") == names.PRIORITY
    wrong = _invalid_roles(roles, ordered)
    if wrong:
        status.refuse(context, one, "spec.roles", f"{wrong}; no instance set is created or changed")
        return
    for text in rollout.malformed(one):
        context.warn(one, "metadata.annotations", text, PassCode.FIELD_IGNORED)
    for role in roles:
        _keep(serving, one, _instance_set(one, role, str(nested_map(spec, "schedulingStrategy").get("type") or "")))
    wanted = {f"{one.key.name}-{role['name']}" for role in roles}
    ready = 0
    for key, raw in serving.children(one, names.API, names.INSTANCES):
        if key.name not in wanted:
            context.delete(one, key, ActionReason.ROLE_REMOVED, f"{one.key} no longer has a role for {key.name}")
        else:
            ready += status.is_ready(raw)
    status.report(
        context, one, ready, len(roles), reason="AllInstanceSetsReady", message="All InstanceSet replicas are ready",
        what="InstanceSet replicas",
    )  # fmt: skip


def _instance_set(one: JobObject, role: dict[str, Any], strategy: str) -> dict[str, Any]:
    """The InstanceSet of a role, with the labels and annotations that its workloads inherit.

    Roles of super-pod policies get the service's UID as ``inferserviceid``, so that the scheduler keeps them close.
    """
    head = nested_map(role, "metadata")
    labels, notes = string_map(head.get("labels")), string_map(head.get("annotations"))
    template = nested_map(role, "spec", "template", "metadata")
    policy = notes.setdefault(SCHEDULE_POLICY, string_map(template.get("annotations")).get(SCHEDULE_POLICY, ""))
    if not policy:
        del notes[SCHEDULE_POLICY]
    given = INFERENCE_SERVICE_ID in string_map(template.get("labels"))
    if INFERENCE_SERVICE_ID in one.labels:
        labels.setdefault(INFERENCE_SERVICE_ID, one.labels[INFERENCE_SERVICE_ID])
    elif len(policy) > len(_SUPER_POD) and policy.endswith(_SUPER_POD) and not given and one.uid:
        labels.setdefault(INFERENCE_SERVICE_ID, one.uid)
    labels |= {INFERENCE_SERVICE: one.key.name, INFERENCE_ROLE: str(role["name"])}
    labels[INFERENCE_STRATEGY] = strategy or names.PARALLEL
    return child(one, names.API, names.INSTANCES, f"{one.key.name}-{role['name']}", labels, role, notes)


def _invalid_roles(roles: list[dict[str, Any]], ordered: bool) -> str:
    """The first error of the roles, empty when there is none."""
    if not 1 <= len(roles) <= names.MAX_ROLES:
        return f"must be 1 to {names.MAX_ROLES} roles"
    found = [str(role.get("name", "")) for role in roles]
    if len(set(found)) != len(found):
        return "names must be unique"
    for role in roles:
        name, replicas, priority = str(role.get("name", "")), role.get("replicas"), role.get("priority")
        if not _DNS.fullmatch(name):
            return f"{name!r:.80} is not an RFC 1123 label"
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= names.MAX_REPLICAS:
            return f"role {name}: replicas must be a number from 0 to {names.MAX_REPLICAS}"
        kind = nested_map(role, "workload")
        if (kind.get("apiVersion"), kind.get("kind")) not in {(names.APPS, known) for known in names.WORKLOADS}:
            return f"role {name}: workload must be an {names.APPS} Deployment or StatefulSet"
        wrong = misshapen(nested_map(role, "spec", "template"))
        if wrong:
            return f"role {name}: spec.template.{wrong}"
        if ordered and priority is not None and not (isinstance(priority, int) and 1 <= priority <= names.MAX_REPLICAS):
            return f"role {name}: priority must be a number from 1 to {names.MAX_REPLICAS}"
    return ""


def _roles(
    serving: ServingContext,
    found: list[JobObject],
    sets: dict[tuple[str, str], JobObject],
    services: dict[tuple[str, str], JobObject],
) -> list[ServiceRollout]:
    """The valid roles by service, in the order of their names."""
    context = serving.context
    groups: dict[tuple[str, str], ServiceRollout] = {}
    for one in found:
        namespace, (service, _) = one.key.namespace, identity(one)
        above = services.get((namespace, service))
        parent = sets.get((namespace, above.labels.get(INFERENCE_SET, ""))) if above is not None else None
        if not _in_shard(context, one, above, parent):
            continue
        serving.services.add((namespace, service))
        wrong = instances.invalid(serving, one)
        if wrong:
            status.refuse(context, one, *wrong)
            continue
        for text in rollout.malformed(one):
            context.warn(one, "metadata.annotations", text, PassCode.FIELD_IGNORED)
        line = [other for other in (above, parent) if other is not None]
        paused = any(annotations_of(other).get(ROLLOUT_ANNOTATION) == names.PAUSED for other in line)
        strategy = nested_map(above.raw, "spec", "schedulingStrategy").get("type") if above is not None else None
        ordered = (strategy or one.labels.get(INFERENCE_STRATEGY)) == names.PRIORITY
        role = read(serving, one, ordered=ordered, paused=paused)
        role.snapshot_base = snapshots.base_of(serving, namespace, role.instance_name(0))
        group = groups.get((namespace, service))
        if group is None:
            group = groups[(namespace, service)] = _rollout(namespace, service, above, parent)
        group.roles.append(role)
    return [group for _, group in sorted(groups.items())]


def _rollout(namespace: str, service: str, above: JobObject | None, parent: JobObject | None) -> ServiceRollout:
    if above is None or parent is None:
        return ServiceRollout(f"{namespace}/{names.SERVICE}/{service}", 0, 1, [])
    count = nested_map(parent.raw, "spec").get("replicas", 1)
    given = annotations_of(parent).get(MAX_UNAVAILABLE)
    limit = rollout.amount(given, count if isinstance(count, int) else 1, up=False)
    index = whole_number(above.labels.get(INFERENCE_SERVICE_INDEX, "0")) or 0
    name = f"{namespace}/{names.SET}/{parent.key.name}"
    return ServiceRollout(name, index, max(1, limit or 1), [])


def _keep(serving: ServingContext, one: JobObject, body: dict[str, Any]) -> None:
    """Create a child that is missing; else patch its spec, labels and annotations where they differ.

    While an autoscaler says how many instances there are, their number stays.
    """
    context, key = serving.context, serving.key_of(body)
    live = context.facts.observed.objects.get(key)
    what = f"{key.kind} {key.name}"
    if live is None:
        context.create_object(one, body, f"{key.kind}Missing", f"{one.key} wants {what}: creating it")
        return
    if nested_map(live, "metadata").get("deletionTimestamp") or not serving.owns(one, live):
        return
    wanted, before = body["spec"], nested_map(live, "spec")
    if key.kind == names.INSTANCES and scaling.is_scaled(before) and "replicas" in before:
        wanted = {**wanted, "replicas": before["replicas"]}
    patch: dict[str, Any] = {"spec": merge_patch(before, wanted)} if before != wanted else {}
    metadata = _metadata_patch(body["metadata"], nested_map(live, "metadata"))
    if metadata and key.kind == names.INSTANCES:
        patch["metadata"] = metadata
    if patch:
        uid = str(nested_map(live, "metadata").get("uid") or "")
        context.patch(one, key, patch, f"{key.kind}Changed", f"{one.key}: {what} changes", uid=uid)


def _metadata_patch(wanted: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Labels and annotations that differ; others stay. An affinity that was once given stays, too."""
    found: dict[str, Any] = {}
    for field in ("labels", "annotations"):
        have = string_map(live.get(field))
        change = {
            name: value
            for name, value in (wanted.get(field) or {}).items()
            if have.get(name) != value and not (name == INFERENCE_SERVICE_ID and name in have)
        }
        if change:
            found[field] = change
    return found

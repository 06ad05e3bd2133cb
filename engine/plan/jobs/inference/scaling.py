"""``scalingPolicy`` of a role: a HorizontalPodAutoscaler that scales its InstanceSet.

Source: component/infer-operator/pkg/controller/scaling/scaling_manager.go.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from belay.engine.model.codes.passes import PassCode
from belay.engine.model.labels import (
    INFERENCE_MANAGED,
    INFERENCE_METRIC_ROLE,
    INFERENCE_SCALES,
    INFERENCE_SERVICE,
    INFERENCE_SET,
    INSTANCE_TEMPLATE,
)
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference.serving import ServingContext, ServingRole, digest_of, template_of
from belay.engine.plan.jobs.inference.workloads import child

HPA: Final = "HPA"
_EXTERNAL: Final = "External"


def is_scaled(spec: dict[str, Any]) -> bool:
    """Whether an autoscaler, and no manifest, says how many instances a role has."""
    return nested_map(spec, "scalingPolicy").get("type") == HPA


def keep(serving: ServingContext, role: ServingRole) -> dict[str, Any] | None:
    """Keep the role's autoscaler; ``status.scalingResourceStatus``, None for a role without a policy."""
    name = f"{role.job.key.name}-scaler"
    policy = role.spec.get("scalingPolicy")
    if not isinstance(policy, dict) or not policy:
        _clean_up(serving, role)
        return None
    kind = str(policy.get("type") or "")
    if kind != HPA:
        return {"type": kind, "ready": False, "message": f"unsupported scaling policy type: {kind}"[:200]}
    wrong = _invalid(nested_map(policy, "spec"))
    if wrong:
        serving.context.warn(role.job, f"spec.scalingPolicy.spec.{wrong[0]}", wrong[1], PassCode.SCALING_REFUSED)
        return {"type": HPA, "ready": False, "message": f"{wrong[0]}: {wrong[1]}"}
    body = _autoscaler(role, name, nested_map(policy, "spec"))
    found = {api: raw for api in names.SCALER_APIS for key, raw in serving.children(role.job, api, names.SCALER)
             if key.name == name}  # fmt: skip
    live = next(iter(found.values()), None)
    if live is None:
        text = f"{role.job.key} wants autoscaler {name}: creating it"
        serving.context.create_object(role.job, body, f"{names.SCALER}Missing", text)
        return {"type": HPA, "name": name, "ready": False, "message": "HPA is not created yet"}
    if template_of(live) != template_of(body) and not nested_map(live, "metadata").get("deletionTimestamp"):
        notes = {INSTANCE_TEMPLATE: template_of(body)}
        adopted = not template_of(live) and _same(body["spec"], nested_map(live, "spec"))
        patch = {"metadata": {"annotations": notes}} | ({} if adopted else {"spec": body["spec"]})
        api = next(iter(found))
        key = next(key for key, _ in serving.children(role.job, api, names.SCALER) if key.name == name)
        text = f"{role.job.key}: autoscaler {name} follows its policy"
        uid = str(nested_map(live, "metadata").get("uid") or "")
        serving.context.patch(role.job, key, patch, f"{names.SCALER}Changed", text, uid=uid)
    return {"type": HPA, "name": name, "ready": True, "message": "HPA created successfully"}


def _autoscaler(role: ServingRole, name: str, policy: dict[str, Any]) -> dict[str, Any]:
    """The autoscaler of a role; external metrics are those of its own service and role."""
    spec = copy.deepcopy(policy)
    spec["scaleTargetRef"] = {"apiVersion": names.API, "kind": names.INSTANCES, "name": role.job.key.name}
    own = {INFERENCE_SERVICE: role.service, INFERENCE_METRIC_ROLE: role.name}
    head, dash, _ = role.service.rpartition("-")
    if dash:
        own[INFERENCE_SET] = head
    for metric in nested_list(spec, "metrics"):
        external = metric.get("external")
        if metric.get("type") == _EXTERNAL and isinstance(external, dict):
            inner = external["metric"] = nested_map(external, "metric")
            selector = inner["selector"] = nested_map(inner, "selector")
            selector["matchLabels"] = {**own, **string_map(selector.get("matchLabels"))}
    labels = {**role.job.labels, INFERENCE_SCALES: role.job.key.name, INFERENCE_MANAGED: ""}
    notes = {**role.job.annotations, INSTANCE_TEMPLATE: digest_of(spec)}
    return child(role.job, names.SCALER_APIS[0], names.SCALER, name, labels, spec, notes)


def _invalid(spec: dict[str, Any]) -> tuple[str, str] | None:
    """The first field that no autoscaler may have, and why."""
    most, least = spec.get("maxReplicas"), spec.get("minReplicas", 1)
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= names.MAX_REPLICAS:
        return "maxReplicas", f"must be a number from 1 to {names.MAX_REPLICAS}"
    if not isinstance(least, int) or isinstance(least, bool) or not 0 <= least <= most:
        return "minReplicas", f"must be a number from 0 to maxReplicas, {most}"
    metrics = spec.get("metrics")
    if metrics is not None and not (isinstance(metrics, list) and all(isinstance(row, dict) for row in metrics)):
        return "metrics", "must be a list of metrics"
    return None


def _clean_up(serving: ServingContext, role: ServingRole) -> None:
    """Delete the autoscaler of a role that no longer has a policy."""
    for api in names.SCALER_APIS:
        gone = False
        for key, raw in serving.children(role.job, api, names.SCALER):
            if string_map(nested_map(raw, "metadata").get("labels")).get(INFERENCE_SCALES) == role.job.key.name:
                text = f"{role.job.key} has no scalingPolicy any more"
                serving.context.delete(role.job, key, ActionReason.SCALING_REMOVED, text)
                gone = True
        if gone:
            return


def _same(wanted: Any, live: Any) -> bool:
    """Whether every wanted field is there; fields that the API server added do not matter."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_same(value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(_same, wanted, live))
    return bool(wanted == live) or str(wanted) == str(live)

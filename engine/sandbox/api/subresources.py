"""Binding, eviction and scale: writes other than updates."""

from __future__ import annotations

import math
from typing import Any

from belay.engine.sandbox.api.deletion import DeleteOptions, Deletion, delete_options
from belay.engine.sandbox.api.errors import ApiError, bad_request, conflict, not_found
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.objects import ObjectWriter, WriteOptions
from belay.engine.sandbox.api.selectors import structured_selector
from belay.engine.sandbox.api.store import ObjectVersion


class Subresources:
    """The subresources `pods/binding`, `pods/eviction` and `*/scale`."""

    def __init__(self, objects: ObjectWriter, deletion: Deletion) -> None:
        self._objects = objects
        self._deletion = deletion

    def bind(self, pods: ServedResource, namespace: str, name: str, binding: Any, *, dry_run: bool) -> None:
        """Assign a pod to a node, once: annotations of the Binding are merged into the pod, labels are ignored, and the
        node need not exist (pkg/registry/core/pod/storage/storage.go, assignPod). A UID or version in the Binding is a
        precondition, as in API servers since 1.23.
        """
        if not isinstance(binding, dict):
            raise bad_request("the object provided is unrecognized (must be of type Binding)")
        given = (binding.get("metadata") or {}).get("name") or name
        if given != name:
            raise bad_request("name in URL does not match name in Binding object")
        target = binding.get("target") or {}
        if not target.get("name"):
            # kube-apiserver answers validation of bindings with a plain 500
            raise ApiError(500, "", "target.name: Required value")
        if target.get("kind") not in (None, "", "Node"):
            raise bad_request(
                f'target.kind: Unsupported value: "{target.get("kind")}": supported values: "Node", "<empty>"'
            )
        live = self._objects.get(pods, namespace, name)
        metadata, spec = live.obj["metadata"], live.obj["spec"]
        _check_preconditions(pods, namespace, name, live, binding.get("metadata") or {})
        if "deletionTimestamp" in metadata:
            raise conflict(
                pods, name, f"pod {name} is being deleted, cannot be assigned to a host", plural="pods/binding"
            )
        if spec.get("nodeName"):
            raise conflict(
                pods, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"', plural="pods/binding"
            )
        if dry_run:
            return
        new = live.copy()
        new["spec"]["nodeName"] = target["name"]
        annotations = (binding.get("metadata") or {}).get("annotations")
        if annotations:
            new["metadata"]["annotations"] = {**(new["metadata"].get("annotations") or {}), **annotations}
        self._scheduled(new)
        self._objects.store.put(pods.storage, live.key, new)

    def _scheduled(self, pod: JSON) -> None:
        status = pod.setdefault("status", {})
        conditions = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
        conditions.append(
            {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": self._objects.now()}
        )
        status["conditions"] = conditions

    def evict(self, pods: ServedResource, namespace: str, name: str, eviction: Any, query: Any) -> None:
        """Delete a pod. Raises ApiError 429 when a PodDisruptionBudget forbids it now."""
        body = eviction if isinstance(eviction, dict) else {}
        options = delete_options(body.get("deleteOptions"), query)
        live = self._objects.get(pods, namespace, name)
        phase = (live.obj.get("status") or {}).get("phase")
        if phase not in ("Succeeded", "Failed", "Pending") and "deletionTimestamp" not in live.obj["metadata"]:
            self._check_budgets(live)
        self._deletion.delete(
            pods,
            namespace,
            name,
            DeleteOptions(options.grace, "", options.uid, options.resource_version, options.dry_run),
        )

    def _check_budgets(self, pod: ObjectVersion) -> None:
        namespace = pod.key[0]
        labels = pod.obj["metadata"].get("labels") or {}
        for entry in self._objects.store.collection("poddisruptionbudgets.policy").entries(namespace):
            spec = entry.obj.get("spec") or {}
            if not structured_selector(spec.get("selector"))(labels):
                continue
            allowed, healthy, wanted = self._allowance(namespace, spec)
            if allowed <= 0:
                name = entry.key[1]
                message = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
                raise ApiError(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
                )

    def _allowance(self, namespace: str, spec: JSON) -> tuple[int, int, int]:
        """Return (disruptions allowed, healthy pods, healthy pods needed).

        Counted here since no disruption controller runs.
        """
        selected = structured_selector(spec.get("selector"))
        pods = [
            e.obj
            for e in self._objects.store.collection("pods").entries(namespace)
            if selected(e.obj["metadata"].get("labels") or {})
        ]
        healthy = sum("deletionTimestamp" not in pod["metadata"] and _ready(pod) for pod in pods)
        if "maxUnavailable" in spec:
            wanted = len(pods) - _amount(spec["maxUnavailable"], len(pods))
        else:
            wanted = _amount(spec.get("minAvailable", 1), len(pods))
        return healthy - wanted, healthy, wanted

    def scale_of(self, resource: ServedResource, entry: ObjectVersion) -> JSON:
        """Return the Scale of a workload."""
        paths = resource.scale
        if paths is None:
            raise not_found(resource, entry.key[1])
        metadata = entry.obj["metadata"]
        shown = {
            key: metadata[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in metadata
        }
        selector = _at(entry.obj, paths.selector) if paths.selector else None
        status: JSON = {"replicas": _at(entry.obj, paths.status) or 0}
        if selector:
            status["selector"] = selector if isinstance(selector, str) else _selector_text(selector)
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": shown,
            "spec": {"replicas": _at(entry.obj, paths.spec) or 0},
            "status": status,
        }

    def set_scale(
        self, resource: ServedResource, live: ObjectVersion, scale: Any, options: WriteOptions
    ) -> ObjectVersion:
        """Store the replica count of a Scale into the workload."""
        replicas = ((scale.get("spec") or {}) if isinstance(scale, dict) else {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise bad_request("spec.replicas must be greater than or equal to 0")
        version = (scale.get("metadata") or {}).get("resourceVersion")
        if version and version != str(live.rv):
            raise conflict(resource, live.key[1])
        new = live.copy()
        assert resource.scale is not None
        parent: JSON = new
        *steps, last = resource.scale.spec.split(".")
        for step in steps:
            parent = parent.setdefault(step, {})
        parent[last] = replicas
        return self._objects.replace(resource, live, new, options)[0]


def _check_preconditions(pods: ServedResource, namespace: str, name: str, live: ObjectVersion, wanted: JSON) -> None:
    """Raise ApiError 409 when the pod is not the one that a Binding means (apiserver storage, Preconditions.Check)."""
    uid, version = wanted.get("uid"), wanted.get("resourceVersion")
    found = live.obj["metadata"]["uid"]
    if uid and uid != found:
        problem = f"UID in precondition: {uid}, UID in object meta: {found}"
    elif version and version != str(live.rv):
        problem = f"ResourceVersion in precondition: {version}, ResourceVersion in object meta: {live.rv}"
    else:
        return
    key = f"/registry/pods/{namespace}/{name}"
    raise conflict(
        pods,
        name,
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {problem}",
    )


def _ready(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _amount(value: Any, total: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(total * int(value[:-1]) / 100)
    return int(value)


def _at(obj: JSON, path: str) -> Any:
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _selector_text(selector: JSON) -> str:
    pairs = [
        f"{key}={value}"
        for key, value in sorted(
            (selector.get("matchLabels", selector if "matchExpressions" not in selector else {})).items()
        )
    ]
    for expression in selector.get("matchExpressions") or ():
        values = ",".join(sorted(expression.get("values") or ()))
        match expression.get("operator"):
            case "Exists":
                pairs.append(expression["key"])
            case "DoesNotExist":
                pairs.append(f"!{expression['key']}")
            case operator:
                pairs.append(f"{expression['key']} {str(operator).lower()} ({values})")
    return ",".join(pairs)

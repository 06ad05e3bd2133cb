"""Defaults of built-in kinds, and the admission plugins that users rely on.

Sources: pkg/apis/{core,apps,batch}/v1/defaults.go of Kubernetes 1.29; admission plugins Priority,
DefaultTolerationSeconds, ServiceAccount (only the name, no token volume).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from belay.engine.model.labels import BATCH_CONTROLLER_UID, NODE_NOT_READY, NODE_UNREACHABLE

JSON = dict[str, Any]

Default = Callable[[JSON], None]


def _pod_template(template: JSON) -> None:
    template.setdefault("metadata", {})
    _pod_spec(template.setdefault("spec", {}))


def _pod_spec(spec: JSON) -> None:
    for key, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("terminationGracePeriodSeconds", 30),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif "serviceAccount" in spec:
        spec["serviceAccountName"] = spec["serviceAccount"]
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            _container(container, bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: JSON, host_network: bool) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        tag = container.get("image", "").rpartition("/")[2].partition("@")
        latest = not tag[1] and tag[0].partition(":")[2] in ("", "latest")
        container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"
    resources = container.setdefault("resources", {})
    if limits := resources.get("limits"):
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))
    for variable in container.get("env") or ():
        if isinstance(field := (variable.get("valueFrom") or {}).get("fieldRef"), dict):
            field.setdefault("apiVersion", "v1")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            _probe(container[probe])


def _probe(probe: JSON) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe.setdefault(key, value)
    if isinstance(probe.get("httpGet"), dict):
        probe["httpGet"].setdefault("scheme", "HTTP")
        probe["httpGet"].setdefault("path", "/")


def _volume(volume: JSON) -> None:
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    if len(volume) == 1:
        volume["emptyDir"] = {}


def _quality(spec: JSON) -> str:
    requested = limited = equal = False
    whole = bool(spec.get("containers"))
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        limits = {k: v for k, v in (resources.get("limits") or {}).items() if k in ("cpu", "memory")}
        requests = {k: v for k, v in (resources.get("requests") or {}).items() if k in ("cpu", "memory")}
        requested = requested or bool(requests)
        limited = limited or bool(limits)
        whole = whole and set(limits) == {"cpu", "memory"} and limits == requests
    equal = whole
    if not requested and not limited:
        return "BestEffort"
    return "Guaranteed" if equal else "Burstable"


def _pod(pod: JSON) -> None:
    spec = pod.setdefault("spec", {})
    _pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    if "serviceAccountName" not in spec:
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    tolerations = spec.setdefault("tolerations", [])
    known = {t.get("key") for t in tolerations if t.get("effect") in (None, "", "NoExecute")}
    if not any(t.get("operator") == "Exists" and not t.get("key") for t in tolerations):
        for key in (NODE_NOT_READY, NODE_UNREACHABLE):
            if key not in known:
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def pod_status(pod: JSON) -> None:
    """Give a new pod its first status."""
    pod["status"] = {"phase": "Pending", "qosClass": _quality(pod["spec"])}


def _rolling(spec: JSON, key: str, kind: str, parameters: JSON) -> None:
    strategy = spec.setdefault(key, {})
    strategy.setdefault("type", kind)
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for name, value in parameters.items():
            rolling.setdefault(name, value)


def _deployment(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in (("replicas", 1), ("revisionHistoryLimit", 10), ("progressDeadlineSeconds", 600)):
        spec.setdefault(key, value)
    _rolling(spec, "strategy", "RollingUpdate", {"maxUnavailable": "25%", "maxSurge": "25%"})
    _pod_template(spec.setdefault("template", {}))


def _statefulset(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in (("replicas", 1), ("revisionHistoryLimit", 10), ("podManagementPolicy", "OrderedReady")):
        spec.setdefault(key, value)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    _rolling(spec, "updateStrategy", "RollingUpdate", {"partition": 0})
    _pod_template(spec.setdefault("template", {}))


def _daemonset(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    _rolling(spec, "updateStrategy", "RollingUpdate", {"maxUnavailable": 1, "maxSurge": 0})
    _pod_template(spec.setdefault("template", {}))


def _replicaset(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    template = spec.setdefault("template", {})
    _pod_template(template)
    if labels := template["metadata"].get("labels"):
        spec.setdefault("selector", {"matchLabels": dict(labels)})
        obj["metadata"].setdefault("labels", dict(labels))


def _job_spec(spec: JSON) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    for key, value in (("backoffLimit", 6), ("completionMode", "NonIndexed"), ("suspend", False)):
        spec.setdefault(key, value)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    _pod_template(spec.setdefault("template", {}))


def _job(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    _job_spec(spec)
    uid = obj["metadata"].get("uid")
    if uid and not spec.get("manualSelector") and "selector" not in spec:
        spec["selector"] = {"matchLabels": {BATCH_CONTROLLER_UID: uid}}
        labels = spec["template"]["metadata"].setdefault("labels", {})
        for prefix in ("", "batch.kubernetes.io/"):
            labels[f"{prefix}controller-uid"] = uid
            labels[f"{prefix}job-name"] = obj["metadata"].get("name", "")


def _cronjob(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in (
        ("concurrencyPolicy", "Allow"),
        ("suspend", False),
        ("successfulJobsHistoryLimit", 3),
        ("failedJobsHistoryLimit", 1),
    ):
        spec.setdefault(key, value)
    _job_template(spec.setdefault("jobTemplate", {}))


def _job_template(template: JSON) -> None:
    template.setdefault("metadata", {})
    _job_spec(template.setdefault("spec", {}))


def _service(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def _namespace(obj: JSON) -> None:
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["status"] = {"phase": (obj.get("status") or {}).get("phase") or "Active"}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _secret(obj: JSON) -> None:
    obj.setdefault("type", "Opaque")
    given: dict[str, Any] = obj.pop("stringData", None) or {}
    for key, text in given.items():
        obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _priority_class(obj: JSON) -> None:
    obj.setdefault("value", 0)
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _claim(obj: JSON) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _volume_object(obj: JSON) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


def _cluster_binding(obj: JSON) -> None:
    reference = obj.get("roleRef")
    if isinstance(reference, dict):
        reference.setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


_DEFAULTS: dict[str, Default] = {
    "pods": _pod,
    "deployments.apps": _deployment,
    "statefulsets.apps": _statefulset,
    "daemonsets.apps": _daemonset,
    "replicasets.apps": _replicaset,
    "replicationcontrollers": _replicaset,
    "jobs.batch": _job,
    "cronjobs.batch": _cronjob,
    "services": _service,
    "namespaces": _namespace,
    "secrets": _secret,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume_object,
    "clusterrolebindings.rbac.authorization.k8s.io": _cluster_binding,
    "rolebindings.rbac.authorization.k8s.io": _cluster_binding,
}

_FIRST_STATUS: dict[str, JSON] = {
    "persistentvolumeclaims": {"phase": "Pending"},
    "persistentvolumes": {"phase": "Pending"},
    "services": {"loadBalancer": {}},
    "nodes": {},
}


def set_defaults(storage: str, obj: JSON) -> None:
    """Fill in defaults of a built-in kind (``deployments.apps``), in place; a kind without defaults is left alone."""
    default = _DEFAULTS.get(storage)
    if default is not None:
        default(obj)


def first_status(storage: str, obj: JSON, *, custom: bool = False) -> None:
    """Replace the status of a new object by its kind's initial one; clients cannot set it on creation."""
    if storage == "pods":
        pod_status(obj)
    elif storage == "namespaces":
        obj["status"] = {"phase": "Active"}
    elif storage == "nodes":
        # kubelets send their first status with the Node, and the registry keeps it
        obj.setdefault("status", {})
    elif storage in _FIRST_STATUS:
        obj["status"] = dict(_FIRST_STATUS[storage])
    else:
        obj.pop("status", None)
        if not custom:
            obj["status"] = {}

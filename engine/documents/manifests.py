"""User manifests: which kinds are accepted, and the rules each must pass to be applied.

Bodies are kept as written. The rules cover fields that Belay reads; the API server checks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from belay.engine.documents import inference_services
from belay.engine.documents.ascend_jobs import check_ascend_job
from belay.engine.documents.containers import PROTOCOLS, check_amounts
from belay.engine.documents.pods import check_labels, check_template
from belay.engine.documents.problems import Path, Problem, Problems
from belay.engine.documents.scalars import LABEL_PATTERN, NAME_PATTERN
from belay.engine.documents.spelling import misspelt_fields, unknown_fields
from belay.engine.documents.volcano_jobs import check_volcano_job
from belay.engine.wire.reserved import KUBERNETES, refusal

#: apiVersion and kind of every accepted manifest, and whether it lives in a namespace.
ACCEPTED: Final[Mapping[tuple[str, str], bool]] = {
    ("mindxdl.gitee.com/v1", "AscendJob"): True,
    ("batch.volcano.sh/v1alpha1", "Job"): True,
    ("mindcluster.huawei.com/v1", "InferServiceSet"): True,
    ("mindcluster.huawei.com/v1", "InferService"): True,
    ("mindcluster.huawei.com/v1", "InstanceSet"): True,
    ("apps/v1", "Deployment"): True,
    ("apps/v1", "StatefulSet"): True,
    ("batch/v1", "Job"): True,
    ("v1", "ConfigMap"): True,
    ("v1", "Service"): True,
    ("v1", "Namespace"): False,
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): True,
    ("scheduling.volcano.sh/v1beta1", "Queue"): False,
    ("scheduling.k8s.io/v1", "PriorityClass"): False,
}
SECRET_HINT: Final = (
    "secrets do not belong in Git: create it in the cluster with kubectl and name it here "
    "by secretRef or imagePullSecrets"
)
_NAME: Final = re.compile(NAME_PATTERN)
_BASE64: Final = re.compile(r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
_LABEL: Final = re.compile(LABEL_PATTERN)
#: Kinds whose names become part of DNS names or pod names.
_LABEL_NAMED: Final = frozenset({"Service", "Namespace", "AscendJob"})
#: Fields of ObjectMeta (Kubernetes, meta/v1); below, those without which it would be another object or be selected
#: otherwise.
_METADATA: Final = frozenset(
    {
        "annotations", "clusterName", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
        "finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
        "resourceVersion", "selfLink", "uid",
    }
)  # fmt: skip
_IDENTITY: Final = ("name", "namespace", "labels", "annotations")
#: Per kind, spec fields without which it would run fewer pods.
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("replicas",),
    "StatefulSet": ("replicas",),
    "InferServiceSet": ("replicas",),
    "InstanceSet": ("replicas",),
    "Job": ("parallelism", "completions"),
    "PodGroup": ("minMember",),
}
_LIVE_FIELDS: Final = ("uid", "resourceVersion", "managedFields", "generation", "deletionTimestamp", "selfLink")


def accepted_kinds() -> str:
    """The accepted kinds as a message lists them."""
    return ", ".join(f"{kind} ({version})" for version, kind in ACCEPTED)


def check_manifest(body: Mapping[str, Any]) -> Problems:
    """All problems of a manifest whose apiVersion and kind are accepted."""
    problems = Problems()
    version, kind = str(body["apiVersion"]), str(body["kind"])
    metadata = problems.mapping(body, "metadata", (), required=True)
    _check_metadata(problems, metadata, kind, ACCEPTED[version, kind])
    _check_reserved(problems, metadata, kind, ACCEPTED[version, kind])
    _check_spelling(problems, body, kind, metadata)
    labels = check_labels(problems, metadata, ("metadata",))
    name = str(metadata.get("name", ""))
    if (version, kind) == ("mindxdl.gitee.com/v1", "AscendJob"):
        check_ascend_job(problems, body, name, labels)
    elif (version, kind) == ("batch.volcano.sh/v1alpha1", "Job"):
        check_volcano_job(problems, body, name)
    else:
        _RULES[kind](problems, body)
    return problems


def _check_metadata(problems: Problems, metadata: Mapping[str, Any], kind: str, namespaced: bool) -> None:
    name = problems.text(metadata, "name", ("metadata",), required=True)
    if name is not None:
        short = kind in _LABEL_NAMED
        if len(name) > (63 if short else 253) or not (_LABEL if short else _NAME).match(name):
            problems.error(
                ("metadata", "name"),
                f"{name!r:.80} is not an RFC 1123 name: lower-case letters, digits, '-'{'' if short else ' and dots'}, "
                f"at most {63 if short else 253} characters",
            )
        elif kind in ("Service", "AscendJob") and name[0].isdigit():
            text = "Service names begin with a letter" if kind == "Service" else "the job's Service could not be named"
            problems.append(Problem(("metadata", "name"), text, "error" if kind == "Service" else "warning"))
    if metadata.get("generateName") is not None:
        problems.error(("metadata", "generateName"), "a declared object needs a fixed name", at_key=True)
    namespace = problems.text(metadata, "namespace", ("metadata",))
    if namespace is not None and not namespaced:
        problems.error(("metadata", "namespace"), f"{kind} has no namespace: remove it", at_key=True)
    elif namespaced and "namespace" in metadata and metadata["namespace"] is None:
        text = "is empty: write a namespace, or remove the line where default is meant"
        problems.error(("metadata", "namespace"), text)
    elif namespace is not None and (len(namespace) > 63 or not _LABEL.match(namespace)):
        problems.error(("metadata", "namespace"), f"{namespace!r:.80} is not an RFC 1123 label")
    for field in _LIVE_FIELDS:
        if metadata.get(field) is not None:
            problems.error(("metadata", field), "belongs to the live object: remove it from the file", at_key=True)


def _check_reserved(problems: Problems, metadata: Mapping[str, Any], kind: str, namespaced: bool) -> None:
    """Refuse what a component keeps as its own record, and whatever would run among the system's pods."""
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, (str, type(None))):
        return
    why = refusal(kind, (namespace or "default") if namespaced else "", name)
    if why:
        field = "name" if kind in ("ConfigMap", "Namespace", "PriorityClass") else "namespace"
        advice = "choose another namespace" if field == "namespace" else "remove the document or rename the object"
        problems.error(("metadata", field), f"{why}, not Git: {advice}")
    elif kind == "ConfigMap" and namespace in KUBERNETES:
        text = f"admission keeps Belay from writing ConfigMaps of {namespace}: apply it by kubectl, and remove it here"
        problems.warn(("metadata", "namespace"), text)


def _check_spelling(problems: Problems, body: Mapping[str, Any], kind: str, metadata: Mapping[str, Any]) -> None:
    """Report mistyped or wrongly indented fields that would make it another object, or a smaller one."""
    for key in body:
        if key in _IDENTITY:
            problems.error((key,), f"belongs below metadata: indent it, so that it reads metadata.{key}", at_key=True)
    misspelt_fields(problems, body, ("data",) if kind == "ConfigMap" else ("spec",), (), ("status", "binaryData"))
    unknown_fields(problems, metadata, _METADATA, ("metadata",), _IDENTITY)
    spec = body.get("spec")
    if isinstance(spec, dict):
        misspelt_fields(problems, spec, _COUNTS.get(kind, ()), ("spec",))


def _check_workload(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check a Deployment or StatefulSet; its selector must match its own template."""
    spec = problems.mapping(body, "spec", (), required=True)
    if not spec:
        return
    problems.integer(spec, "replicas", ("spec",), minimum=0)
    template = problems.mapping(spec, "template", ("spec",), required=True)
    selector = problems.mapping(spec, "selector", ("spec",), required=True)
    wanted = problems.mapping(selector, "matchLabels", ("spec", "selector"))
    metadata = template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    for key, value in wanted.items():
        if not isinstance(value, str):
            problems.error(("spec", "selector", "matchLabels", key), "label values are text: put the value in quotes")
        elif not isinstance(labels, dict) or labels.get(key) != value:
            problems.error(
                ("spec", "selector", "matchLabels", key),
                "the template's labels must carry this label with the same value",
            )
    if selector and not wanted and not selector.get("matchExpressions"):
        problems.error(("spec", "selector"), "an empty selector selects nothing: name labels of the template")
    check_template(problems, template, ("spec", "template"), _claims(problems, spec))
    pod = template.get("spec")
    if isinstance(pod, dict) and pod.get("restartPolicy") not in (None, "", "Always"):
        where = ("spec", "template", "spec", "restartPolicy")
        problems.error(where, f"a {body['kind']}'s pods need restartPolicy Always")
    if body["kind"] == "StatefulSet":
        problems.choice(spec, "podManagementPolicy", ("spec",), ("", "OrderedReady", "Parallel"))
        problems.text(spec, "serviceName", ("spec",))


def _claims(problems: Problems, spec: Mapping[str, Any]) -> list[str]:
    """Names of a StatefulSet's volume claims, which its pods mount as volumes."""
    names = []
    for index, claim in enumerate(problems.sequence(spec, "volumeClaimTemplates", ("spec",))):
        where = ("spec", "volumeClaimTemplates", index)
        metadata = problems.mapping(claim, "metadata", where, required=True)
        names.append(problems.text(metadata, "name", (*where, "metadata"), required=True) or "")
    return names


def _check_batch_job(problems: Problems, body: Mapping[str, Any]) -> None:
    spec = problems.mapping(body, "spec", (), required=True)
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        problems.integer(spec, field, ("spec",), minimum=0)
    template = problems.mapping(spec, "template", ("spec",), required=True)
    check_template(problems, template, ("spec", "template"))
    pod = template.get("spec")
    if isinstance(pod, dict) and pod.get("restartPolicy") not in ("OnFailure", "Never"):
        where = ("spec", "template", "spec", "restartPolicy")
        problems.error(where, "a Job's pods need restartPolicy OnFailure or Never")


def _check_config_map(problems: Problems, body: Mapping[str, Any]) -> None:
    for field in ("data", "binaryData"):
        for key, value in problems.mapping(body, field, ()).items():
            if not re.match(r"^[-._a-zA-Z0-9]{1,253}$", key):
                problems.error((field, key), f"{key!r:.80} is not a ConfigMap key", at_key=True)
            if not isinstance(value, str):
                problems.error((field, key), "ConfigMap values are text: put the value in quotes or use '|'")
            elif field == "binaryData" and not _BASE64.match("".join(value.split())):
                problems.error((field, key), "is not base64")
            if field == "binaryData" and isinstance(body.get("data"), dict) and key in body["data"]:
                problems.error((field, key), "data has this key too", at_key=True)
    unknown_fields(problems, body, ("apiVersion", "kind", "metadata", "data", "binaryData", "immutable"), ())


def _check_service(problems: Problems, body: Mapping[str, Any]) -> None:
    spec = problems.mapping(body, "spec", (), required=True)
    for key, value in problems.mapping(spec, "selector", ("spec",)).items():
        if not isinstance(value, str):
            problems.error(("spec", "selector", key), "label values are text: put the value in quotes")
    problems.choice(spec, "type", ("spec",), ("", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    ports = problems.sequence(spec, "ports", ("spec",))
    taken: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        where = ("spec", "ports", index)
        number = problems.integer(port, "port", where)
        if number is None or not 1 <= number <= 65_535:
            problems.error((*where, "port"), "a port is a number from 1 to 65535")
        protocol = problems.choice(port, "protocol", where, ("", *PROTOCOLS)) or "TCP"
        if number is not None and (number, protocol) in taken:
            problems.error((*where, "port"), f"port {number} is given twice for {protocol}")
        taken.add((number, protocol))
        if isinstance(port, dict):
            _check_service_port(problems, port, where, len(ports) > 1)


def _check_service_port(problems: Problems, port: Mapping[str, Any], where: Path, several: bool) -> None:
    if several and not port.get("name"):
        problems.error((*where, "name"), "ports of a Service with several need names")
    target = port.get("targetPort")
    if isinstance(target, str) and target.isdecimal():
        problems.error((*where, "targetPort"), "text is the name of a container's port: remove the quotes")


def _check_pod_group(problems: Problems, body: Mapping[str, Any]) -> None:
    spec = problems.mapping(body, "spec", ())
    problems.integer(spec, "minMember", ("spec",), minimum=0)
    problems.text(spec, "queue", ("spec",))
    problems.text(spec, "priorityClassName", ("spec",))
    check_amounts(problems, problems.mapping(spec, "minResources", ("spec",)), ("spec", "minResources"))


def _check_queue(problems: Problems, body: Mapping[str, Any]) -> None:
    spec = problems.mapping(body, "spec", ())
    problems.integer(spec, "weight", ("spec",), minimum=1)
    check_amounts(problems, problems.mapping(spec, "capability", ("spec",)), ("spec", "capability"))
    if spec.get("reclaimable") not in (None, True, False):
        problems.error(("spec", "reclaimable"), "must be true or false")


def _check_priority_class(problems: Problems, body: Mapping[str, Any]) -> None:
    if problems.integer(body, "value", ()) is None and "value" not in body:
        problems.error(("value",), "required field is missing")
    problems.choice(body, "preemptionPolicy", (), ("PreemptLowerPriority", "Never"))


def _check_nothing_more(problems: Problems, body: Mapping[str, Any]) -> None:
    problems.mapping(body, "spec", ())


_RULES: Final[Mapping[str, Callable[[Problems, Mapping[str, Any]], None]]] = {
    "InferServiceSet": inference_services.check_set,
    "InferService": inference_services.check_service,
    "InstanceSet": _check_nothing_more,
    "Deployment": _check_workload,
    "StatefulSet": _check_workload,
    "Job": _check_batch_job,
    "ConfigMap": _check_config_map,
    "Service": _check_service,
    "Namespace": _check_nothing_more,
    "PodGroup": _check_pod_group,
    "Queue": _check_queue,
    "PriorityClass": _check_priority_class,
}

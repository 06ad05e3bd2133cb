"""Rules for fields of container and pod specs that Belay does not read, so that errors show before pods are created.

CRDs of jobs do not check their pod templates: an API server stores there what it would refuse in a pod. Source: the
validation rules of Kubernetes' core/v1 (pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from belay.engine.documents.problems import Path, Problems
from belay.engine.documents.scalars import LABEL_PATTERN
from belay.engine.documents.spelling import unknown_fields
from belay.engine.model import quantities

_LABEL: Final = re.compile(LABEL_PATTERN)
_PORT_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$")
PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_PULL: Final = ("", "Always", "IfNotPresent", "Never")
_CONTAINER: Final = frozenset(
    {
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
        "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
        "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty",
        "volumeDevices", "volumeMounts", "workingDir",
    }
)  # fmt: skip
_POD: Final = frozenset(
    {
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
        "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers",
        "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os",
        "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
        "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext",
        "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
        "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
    }
)  # fmt: skip


def check_pod_fields(problems: Problems, spec: Mapping[str, Any], path: Path) -> None:
    """Check the fields of a pod spec."""
    unknown_fields(problems, spec, _POD, path)
    problems.choice(spec, "dnsPolicy", path, ("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field) not in (None, True, False):
            problems.error((*path, field), "must be true or false")


def check_container_fields(
    problems: Problems, container: Mapping[str, Any], path: Path, volumes: Collection[str]
) -> None:
    """Check the fields of a container; ``volumes`` are the names that it may mount."""
    unknown_fields(problems, container, _CONTAINER, path, ("resources",))
    name = container.get("name")
    if isinstance(name, str) and (len(name) > 63 or not _LABEL.match(name)):
        problems.error((*path, "name"), f"{name!r:.80} is not a container name: lower-case letters, digits and '-'")
    problems.choice(container, "imagePullPolicy", path, _PULL)
    _check_ports(problems, container, path)
    for index, mount in enumerate(problems.sequence(container, "volumeMounts", path)):
        where = (*path, "volumeMounts", index)
        if not isinstance(mount, dict):
            problems.error(where, "must be a mapping with name and mountPath")
            continue
        problems.text(mount, "mountPath", where, required=True)
        volume = problems.text(mount, "name", where, required=True)
        if volume is not None and volume not in volumes:
            problems.error((*where, "name"), f"no volume of this pod is named {volume!r:.80}")


def _check_ports(problems: Problems, container: Mapping[str, Any], path: Path) -> None:
    for index, port in enumerate(problems.sequence(container, "ports", path)):
        where = (*path, "ports", index)
        if not isinstance(port, dict):
            problems.error(where, "must be a mapping with containerPort")
            continue
        number = problems.integer(port, "containerPort", where)
        if number is None or not 1 <= number <= 65_535:
            problems.error((*where, "containerPort"), "a port is a number from 1 to 65535")
        name = problems.text(port, "name", where)
        if name is not None and not _PORT_NAME.match(name):
            problems.error(
                (*where, "name"), f"{name!r:.80} is not a port name: at most 15 lower-case letters, digits, '-'"
            )
        problems.choice(port, "protocol", where, ("", *PROTOCOLS))


def check_amounts(problems: Problems, values: Mapping[str, Any], path: Path) -> None:
    """Check that every value of a map is a Kubernetes quantity of at least 0."""
    for key, value in values.items():
        amount = None if isinstance(value, bool) else quantities.parse(str(value))
        if amount is None or amount < 0:
            problems.error((*path, key), f"{value!r:.40} is not a quantity: write it as 4, 500m or 16Gi")


def check_limits(problems: Problems, requests: Mapping[str, Any], limits: Mapping[str, Any], path: Path) -> None:
    """Check that no request exceeds its limit."""
    for key, value in requests.items():
        want, most = quantities.parse(str(value)), quantities.parse(str(limits.get(key)))
        if want is not None and most is not None and want > most:
            problems.error((*path, "requests", key), f"requests {value} of {key}, more than its limit {limits[key]}")

"""InferServiceSets and InferServices as users write them.

Source: component/infer-operator/pkg/api/v1 and docs/zh/scheduling/06_api/10_infer_operator.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from belay.engine.documents.pods import check_template
from belay.engine.documents.problems import Path, Problems
from belay.engine.model.labels import MAX_SURGE, MAX_UNAVAILABLE, ROLLOUT_ANNOTATION

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_AMOUNT: Final = re.compile(r"[0-9]{1,5}%?")
_LIMITS: Final = (MAX_UNAVAILABLE, MAX_SURGE)
_STATES: Final = ("paused", "running")


def check_set(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check the number of services of an InferServiceSet and their template."""
    spec = problems.mapping(body, "spec", (), required=True)
    _check_rollout(problems, body.get("metadata"), ("metadata",))
    if not spec:
        return
    replicas = problems.integer(spec, "replicas", ("spec",), minimum=1)
    if replicas is not None and replicas > 64:
        problems.error(("spec", "replicas"), f"must be at most 64, but is {replicas}")
    template = problems.mapping(spec, "template", ("spec",), required=True)
    if "roles" in template:
        _check_roles(problems, template, ("spec", "template"))


def check_service(problems: Problems, body: Mapping[str, Any]) -> None:
    """Check the roles of an InferService."""
    spec = problems.mapping(body, "spec", (), required=True)
    _check_rollout(problems, body.get("metadata"), ("metadata",))
    if spec and not isinstance(spec.get("roles"), list):
        problems.error(("spec", "roles") if "roles" in spec else ("spec",), "roles must be a list of 1 to 32 roles")
    elif spec:
        _check_roles(problems, spec, ("spec",))


def _check_roles(problems: Problems, spec: Mapping[str, Any], above: Path) -> None:
    strategy = problems.mapping(spec, "schedulingStrategy", above)
    problems.choice(strategy, "type", (*above, "schedulingStrategy"), ("", "Parallel", "Priority"))
    roles, taken = problems.sequence(spec, "roles", above), set()
    if not 1 <= len(roles) <= 32:
        problems.error((*above, "roles"), f"must be 1 to 32 roles, but are {len(roles)}")
    for index, role in enumerate(roles):
        where: Path = (*above, "roles", index)
        if not isinstance(role, dict):
            problems.error(where, "a role is a mapping")
            continue
        name = problems.text(role, "name", where, required=True)
        if name is not None and not _NAME.fullmatch(name):
            problems.error((*where, "name"), f"{name!r:.80} is not an RFC 1123 label: lower case, digits and '-'")
        if name in taken:
            problems.error((*where, "name"), f"role {name} is declared twice")
        taken.add(name)
        _check_role(problems, role, where)


def _check_role(problems: Problems, role: Mapping[str, Any], where: Path) -> None:
    replicas = problems.integer(role, "replicas", where, minimum=0)
    if replicas is not None and replicas > 256:
        problems.error((*where, "replicas"), f"must be at most 256, but is {replicas}")
    if "replicas" not in role:
        problems.error(where, "replicas is missing: the number of instances")
    workload = problems.mapping(role, "workload", where, required=True)
    if workload:
        problems.choice(workload, "kind", (*where, "workload"), ("Deployment", "StatefulSet"))
        problems.choice(workload, "apiVersion", (*where, "workload"), ("apps/v1",))
    problems.integer(role, "priority", where, minimum=1)
    _check_rollout(problems, role.get("metadata"), (*where, "metadata"))
    body = problems.mapping(role, "spec", where, required=True)
    if body:
        template = problems.mapping(body, "template", (*where, "spec"), required=True)
        check_template(problems, template, (*where, "spec", "template"))
    policy = problems.mapping(role, "scalingPolicy", where)
    if policy and problems.choice(policy, "type", (*where, "scalingPolicy"), ("HPA",)) is not None:
        inner = problems.mapping(policy, "spec", (*where, "scalingPolicy"), required=True)
        if inner and problems.integer(inner, "maxReplicas", (*where, "scalingPolicy", "spec"), minimum=1) is None:
            problems.error((*where, "scalingPolicy", "spec"), "maxReplicas is missing: the most instances")


def _check_rollout(problems: Problems, metadata: object, where: Path) -> None:
    """Belay's annotations on how a changed template reaches its instances."""
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    for key, value in (found if isinstance(found, dict) else {}).items():
        if key in _LIMITS and not (isinstance(value, str) and _AMOUNT.fullmatch(value)):
            problems.error((*where, "annotations", key), 'must be a number or a percentage in quotes: "1" or "25%"')
        if key == ROLLOUT_ANNOTATION and value not in _STATES:
            problems.error((*where, "annotations", key), f"must be one of {', '.join(_STATES)}, but is {value!r:.80}")

"""Label and field selectors: parsed once per request into predicates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from belay.engine.sandbox.api.errors import bad_request
from belay.engine.sandbox.api.kinds import JSON, ServedResource

Predicate = Callable[[JSON], bool]

MAX_SELECTOR_CHARS = 65_536
_SET = re.compile(r"^(?P<key>[^\s!=<>()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_PAIR = re.compile(r"^(?P<key>[^\s!=<>()]+)\s*(?P<op>==|!=|=|<|>)\s*(?P<value>[^\s!=<>()]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)$")

# field labels beyond metadata.name and metadata.namespace (pkg/apis/*/v1/conversion.go, pkg/registry/*/strategy.go
# of Kubernetes)
_FIELDS: dict[str, tuple[str, ...]] = {
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
        "reason", "reportingComponent", "source", "type",
    ),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "jobs.batch": ("status.successful",),
    "replicasets.apps": ("status.replicas",),
    "replicationcontrollers": ("status.replicas",),
}  # fmt: skip


@dataclass(slots=True)
class Selection:
    """The selection of a list, watch or deletecollection.

    `name` and `namespace` are set when a field selector requires one value.
    """

    predicates: list[Predicate] = field(default_factory=list)
    name: str | None = None
    namespace: str | None = None

    def matches(self, obj: JSON) -> bool:
        """Whether an object is selected."""
        return all(predicate(obj) for predicate in self.predicates)

    @property
    def everything(self) -> bool:
        """Whether every object is selected."""
        return not self.predicates


def selection(resource: ServedResource, labels: str, fields: str) -> Selection:
    """Parse the query parameters labelSelector and fieldSelector. Raises ApiError 400 for an invalid selector."""
    if len(labels) + len(fields) > MAX_SELECTOR_CHARS:
        raise bad_request("selector is too long")
    found = Selection()
    if labels:
        found.predicates.append(label_selector(labels))
    if fields:
        for part in _split(fields):
            _add_field(found, resource, part)
    return found


def label_selector(text: str) -> Predicate:
    """Return the predicate of a label selector in its text form, e.g. `a=b,c in (d,e),!f`."""
    tests = [_label_test(part) for part in _split(text)]

    def matches(obj: JSON) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def structured_selector(selector: JSON | None) -> Callable[[dict[str, str]], bool]:
    """Return the predicate over labels of a `LabelSelector` object; None selects nothing, the empty one everything."""
    if selector is None:
        return lambda labels: False
    wanted = dict(selector.get("matchLabels") or {})
    tests = [
        _expression(e.get("key", ""), e.get("operator", ""), set(e.get("values") or ()))
        for e in selector.get("matchExpressions") or ()
    ]
    return lambda labels: all(labels.get(k) == v for k, v in wanted.items()) and all(test(labels) for test in tests)


def _expression(key: str, operator: str, values: set[str]) -> Callable[[dict[str, str]], bool]:
    match operator:
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case "Exists":
            return lambda labels: key in labels
        case "DoesNotExist":
            return lambda labels: key not in labels
        case _:
            raise bad_request(f'"{operator}" is not a valid label selector operator')


def _split(text: str) -> list[str]:
    parts: list[str] = []
    depth = start = 0
    for i, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _label_test(part: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        return _expression(found["key"], "In" if found["op"] == "in" else "NotIn", values)
    if found := _PAIR.match(part):
        key, value = found["key"], found["value"]
        match found["op"]:
            case "=" | "==":
                return lambda labels: labels.get(key) == value
            case "!=":
                return lambda labels: labels.get(key) != value
            case op:
                return _ordered(key, op, value)
    if found := _EXISTS.match(part):
        return _expression(found["key"], "DoesNotExist" if found["not"] else "Exists", set())
    raise bad_request(f"unable to parse requirement: found '{part}', expected: in, notin, =, ==, !=, gt, lt")


def _ordered(key: str, op: str, value: str) -> Callable[[dict[str, str]], bool]:
    if not value.lstrip("-").isdigit():
        raise bad_request(f"for 'Gt', 'Lt' operators, the value must be an integer, found \"{value}\"")
    limit = int(value)

    def test(labels: dict[str, str]) -> bool:
        found = labels.get(key, "")
        return found.lstrip("-").isdigit() and (int(found) > limit if op == ">" else int(found) < limit)

    return test


def _add_field(found: Selection, resource: ServedResource, part: str) -> None:
    pair = re.match(r"^(?P<key>[^!=]+)(?P<op>==|!=|=)(?P<value>.*)$", part)
    if not pair:
        raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
    key, value, negative = pair["key"].strip(), _unescaped(pair["value"]), pair["op"] == "!="
    known = ("metadata.name", *(("metadata.namespace",) if resource.namespaced or not resource.custom else ()))
    known = (*known, *_FIELDS.get(resource.storage, ()), *resource.selectable)
    if key not in known:
        if resource.storage in _FIELDS:
            raise bad_request(f"field label not supported: {key}")
        listed = ", ".join(f'"{name}"' for name in known)
        raise bad_request(f'"{key}" is not a known field selector: only {listed}')
    if not negative and key == "metadata.name":
        found.name = value
    if not negative and key == "metadata.namespace":
        found.namespace = value
    read = _reader(resource, key)
    found.predicates.append((lambda obj: read(obj) != value) if negative else (lambda obj: read(obj) == value))


def _unescaped(value: str) -> str:
    return re.sub(r"\\([,=\\])", r"\1", value)


def _reader(resource: ServedResource, key: str) -> Callable[[JSON], str]:
    if resource.storage == "events" and key == "source":
        return lambda obj: (obj.get("source") or {}).get("component", "") or obj.get("reportingComponent", "")
    path = key.split(".")
    if key == "status.successful":
        path = ["status", "succeeded"]

    def read(obj: JSON) -> str:
        value: Any = obj
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return (
                "false"
                if key in ("spec.unschedulable", "spec.hostNetwork")
                else "0"
                if "replicas" in key or "successful" in key
                else ""
            )
        return str(value).lower() if isinstance(value, bool) else str(value)

    return read

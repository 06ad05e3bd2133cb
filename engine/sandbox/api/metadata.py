"""Metadata of all kinds: names, labels, UIDs and times."""

from __future__ import annotations

import random
import re
import uuid
from datetime import UTC, datetime
from typing import Any

from belay.engine.sandbox.api.errors import FieldError, field_forbidden, field_invalid, field_required, field_too_long
from belay.engine.sandbox.api.kinds import JSON, ServedResource

MAX_ANNOTATION_BYTES = 256 * 1024
"""Limit of all annotation keys and values of one object, bytes (k8s.io/apimachinery/pkg/api/validation)."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"^{_LABEL}(\.{_LABEL})*$")
_DNS_LABEL = re.compile(rf"^{_LABEL}$")
_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUBDOMAIN_WHY = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an "
    "alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_WHY = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
    "end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_DNS_1035_WHY = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an "
    "alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_WHY = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an "
    "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_WHY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def timestamp(now: float) -> str:
    """Return `now` (unix seconds) as Kubernetes writes times."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Return an RFC 3339 time as unix seconds. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def new_uid() -> str:
    """Return a random UID."""
    return str(uuid.uuid4())


def generated_name(base: str) -> str:
    """Return `base` with the five random characters of generateName."""
    return base[:58] + "".join(random.choices(_SUFFIX, k=5))


def _name_error(resource: ServedResource, name: str) -> str:
    if resource.group == "rbac.authorization.k8s.io" or resource.storage == "events":
        return "" if name not in (".", "..") and "/" not in name and "%" not in name else f"may not be '{name}'"
    if resource.plural == "namespaces":
        return "" if _DNS_LABEL.match(name) and len(name) <= 63 else _LABEL_WHY
    if resource.plural == "services" and not resource.group:
        return "" if _DNS_1035.match(name) and len(name) <= 63 else _DNS_1035_WHY
    return "" if _SUBDOMAIN.match(name) and len(name) <= 253 else _SUBDOMAIN_WHY


def validate_metadata(resource: ServedResource, metadata: JSON) -> list[FieldError]:
    """Return the errors of name, labels, annotations, finalizers and owners."""
    errors: list[FieldError] = []
    name = metadata.get("name") or ""
    if not name:
        errors.append(field_required("metadata.name", "name or generateName is required"))
    elif why := _name_error(resource, name):
        errors.append(field_invalid("metadata.name", name, why))
    labels = metadata.get("labels")
    if labels:
        errors.extend(label_errors(labels, "metadata.labels"))
    if annotations := metadata.get("annotations"):
        errors.extend(_annotation_errors(annotations))
    for i, owner in enumerate(metadata.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                errors.append(
                    field_invalid(
                        f"metadata.ownerReferences[{i}].{key}", owner.get(key) or "", f"{key} must not be empty"
                    )
                )
    for i, finalizer in enumerate(metadata.get("finalizers") or ()):
        if not _qualified(finalizer):
            errors.append(field_invalid(f"metadata.finalizers[{i}]", finalizer, _KEY_WHY))
    return errors


def label_errors(labels: dict[str, Any], path: str) -> list[FieldError]:
    """Return the errors of a map of labels."""
    errors: list[FieldError] = []
    for key, value in labels.items():
        if not _qualified(key):
            errors.append(field_invalid(path, key, _KEY_WHY))
        if value and (len(value) > 63 or not _QUALIFIED.match(value)):
            errors.append(
                field_invalid(path, value, _VALUE_WHY if len(value) <= 63 else "must be no more than 63 characters")
            )
    return errors


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.match(prefix) and len(prefix) <= 253):
        return False
    return len(name) <= 63 and bool(_QUALIFIED.match(name))


def _annotation_errors(annotations: dict[str, Any]) -> list[FieldError]:
    errors = [
        field_invalid("metadata.annotations", key, _KEY_WHY) for key in annotations if not _qualified(key.lower())
    ]
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATION_BYTES:
        errors.append(field_too_long("metadata.annotations", f"must have at most {MAX_ANNOTATION_BYTES} bytes"))
    return errors


_SYSTEM = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation")


def prepare_new(metadata: JSON, namespace: str, now: float) -> None:
    """Set a new object's UID and times; fields that only the server may set are overwritten."""
    for key in _SYSTEM:
        metadata.pop(key, None)
    if namespace:
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    metadata["uid"] = new_uid()
    metadata["creationTimestamp"] = timestamp(now)


def carry_over(metadata: JSON, live: JSON) -> None:
    """Keep the live object's values of fields that an update cannot change."""
    for key in (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "namespace",
        "generateName",
        "selfLink",
    ):
        if key in live:
            metadata[key] = live[key]
        else:
            metadata.pop(key, None)
    metadata["name"] = live["name"]


def finalizer_errors(metadata: JSON, live: JSON) -> list[FieldError]:
    """Return the error of adding finalizers to an object that is being deleted."""
    if "deletionTimestamp" not in live:
        return []
    added = set(metadata.get("finalizers") or ()) - set(live.get("finalizers") or ())
    if not added:
        return []
    return [
        field_forbidden(
            "metadata.finalizers",
            f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}",
        )
    ]

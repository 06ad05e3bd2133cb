"""HTTP errors as Kubernetes words them: a `Status` object with code, reason, message and details.

Clients branch on `reason` and people search for `message`, so both keep the wording of kube-apiserver
(k8s.io/apimachinery/pkg/api/errors, k8s.io/apimachinery/pkg/util/validation/field).
"""

from __future__ import annotations

from typing import Any

import orjson

from belay.engine.errors import bounded
from belay.engine.sandbox.api.kinds import JSON, ServedResource

MAX_MESSAGE_CHARS = 16_384
"""Longest message of one Status, in characters, since a validation error may list many fields."""


class ApiError(Exception):
    """A rejected request. `code` is the HTTP status, `reason` the machine-readable word."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: JSON | None = None,
        headers: dict[str, str] | None = None,
        metadata: JSON | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = bounded(message, MAX_MESSAGE_CHARS)
        self.details = details
        self.headers = headers or {}
        self.metadata = metadata or {}

    def status(self) -> JSON:
        """Return the error as a Kubernetes `Status` object."""
        body: JSON = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


def success(details: JSON | None = None, code: int = 200) -> JSON:
    """Return a `Status` with Success, the response to deletions and bindings."""
    body: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        body["details"] = details
    if code != 200:
        body["code"] = code
    return body


def _details(resource: ServedResource, name: str, kind: str = "") -> JSON:
    details: JSON = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = kind or resource.plural
    return details


def bad_request(message: str) -> ApiError:
    """400: the request is malformed."""
    return ApiError(400, "BadRequest", message)


def no_such_path() -> ApiError:
    """404 for a path that names no resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def not_found(resource: ServedResource, name: str) -> ApiError:
    """404: no object of that name."""
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', details=_details(resource, name))


def already_exists(resource: ServedResource, name: str) -> ApiError:
    """409: an object of that name exists already."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(resource: ServedResource, name: str, why: str = MODIFIED, *, plural: str = "") -> ApiError:
    """409: the object is not in the state that the request assumed. `plural` names a subresource (`pods/binding`)."""
    message = f'Operation cannot be fulfilled on {plural or resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(resource, name, plural))


def forbidden(resource: ServedResource, name: str, why: str, causes: list[JSON] | None = None) -> ApiError:
    """403: understood and refused."""
    details = _details(resource, name)
    if causes:
        details["causes"] = causes
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details=details)


def method_not_allowed() -> ApiError:
    """405: the resource has no such verb."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, details={})


def unsupported_media(accepted: list[str]) -> ApiError:
    """415: the endpoint does not accept the body's format."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message, details={})


def too_large(limit: int) -> ApiError:
    """413: body or object beyond the limit (bytes)."""
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}", details={})


def expired(message: str, metadata: JSON | None = None) -> ApiError:
    """410: the resourceVersion or continue token is older than the stored history; list again."""
    return ApiError(410, "Expired", message, metadata=metadata)


class FieldError:
    """One wrong field of an object. `kind` is the constant of field.Error (`FieldValueInvalid`, ...)."""

    __slots__ = ("field", "kind", "text")

    def __init__(self, field: str, kind: str, text: str) -> None:
        self.field = field
        self.kind = kind
        self.text = text

    def cause(self) -> JSON:
        """Return the error as an entry of `Status.details.causes`."""
        return {"reason": self.kind, "message": self.text, "field": self.field}


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return bounded(orjson.dumps(value).decode(), 256)


def field_invalid(field: str, value: Any, why: str) -> FieldError:
    """The value is not legal."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def field_type(field: str, value: Any, why: str) -> FieldError:
    """The value has the wrong type."""
    return FieldError(field, "FieldValueTypeInvalid", f"Invalid value: {_shown(value)}: {why}")


def field_required(field: str, why: str = "") -> FieldError:
    """The value is missing."""
    return FieldError(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def field_unsupported(field: str, value: Any, supported: list[Any]) -> FieldError:
    """The value is not one of a closed set."""
    listed = ", ".join(_shown(item) for item in supported)
    return FieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {listed}"
    )


def field_forbidden(field: str, why: str) -> FieldError:
    """The field must not be set or changed."""
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {why}")


def field_duplicate(field: str, value: Any) -> FieldError:
    """The value occurs twice."""
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def field_too_long(field: str, why: str) -> FieldError:
    """The value is longer than allowed."""
    return FieldError(field, "FieldValueTooLong", f"Too long: {why}")


def invalid(resource: ServedResource, name: str, errors: list[FieldError]) -> ApiError:
    """422: the object is invalid; the message names all wrong fields."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return invalid_kind(kind, resource.group, resource.kind, name, errors)


def invalid_kind(qualified: str, group: str, kind: str, name: str, errors: list[FieldError]) -> ApiError:
    """422 for a kind that is not a stored resource, e.g. PatchOptions."""
    lines = [f"{error.field}: {error.text}" for error in errors]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details: JSON = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = kind
    details["causes"] = [error.cause() for error in errors]
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)

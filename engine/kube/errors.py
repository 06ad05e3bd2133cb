"""Errors of calls to a Kubernetes API server, as a few named classes.

The classes are our own, because the transport may be replaced and callers must not depend on it. Messages
are cut to 256 characters and never hold headers, request bodies or the content of a Secret.
"""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.errors import BelayError
from belay.engine.model.refusals import RefusalCause

MESSAGE_LIMIT = 256
CAUSES_LIMIT = 20


class KubeError(BelayError):
    """A call failed. ``status`` is the HTTP status (0 when no answer came), ``reason`` the API's CamelCase word.

    ``refusal`` says why the server refuses the object itself; None where another try may succeed as it is: no answer,
    too much load, or a version that changed.
    """

    code = "ApiError"

    def __init__(self, message: str, *, status: int = 0, reason: str = "", refusal: RefusalCause | None = None) -> None:
        super().__init__(bounded(message))
        self.status = status
        self.reason = reason
        self.refusal = refusal


class NotFound(KubeError):
    """The object, its namespace or its kind does not exist (404)."""

    code = "NotFound"


class Conflict(KubeError):
    """Another writer was faster: resourceVersion or uid changed, the name is taken, or the pod is bound (409)."""

    code = "Conflict"

    @property
    def already_exists(self) -> bool:
        return self.reason == "AlreadyExists"


class Gone(KubeError):
    """The resourceVersion or continue token is too old (410): list again."""

    code = "Gone"


class TooMany(KubeError):
    """The server asks to come back later (429); for an eviction: a disruption budget refuses it. ``retry_after`` in
    s.
    """

    code = "TooManyRequests"

    def __init__(self, message: str, *, status: int = 429, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class Forbidden(KubeError):
    """Not allowed, or not authenticated (403, 401)."""

    code = "Forbidden"


class Invalid(KubeError):
    """The server refuses the content (400, 422). ``causes`` names fields: ``[(field, message)]``, at most 20."""

    code = "Invalid"

    def __init__(
        self, message: str, *, status: int = 422, reason: str = "", causes: list[tuple[str, str]] | None = None
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.causes = causes or []


class Unavailable(KubeError):
    """No usable answer: no connection, a timeout, a broken answer, or a server error (5xx)."""

    code = "Unavailable"


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """``text`` on one line and at most ``limit`` characters long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def from_answer(
    status: int, body: bytes, where: str, *, retry_after: str | None = None, withhold: bool = False
) -> KubeError:
    """The error for an HTTP answer; ``where`` names the request, ``withhold`` drops the server's wording
    (Secrets).
    """
    answer = _status_object(body)
    error = _error(status, answer, body, where, retry_after, withhold)
    error.refusal = refusal_of(status, answer)
    return error


def refusal_of(status: int, answer: dict[str, Any]) -> RefusalCause | None:
    """Why the server refuses an object, from its ``Status``; None where it says nothing about the object.

    Quotas, webhooks and roles all answer 403 and no field distinguishes them, so here, and only here, the
    beginning of Kubernetes' own sentence does.
    """
    message = str(answer.get("message") or "")
    details = answer.get("details")
    details = details if isinstance(details, dict) else {}
    reasons = {str(cause.get("reason")) for cause in details.get("causes") or () if isinstance(cause, dict)}
    if status == 404:
        missing = details.get("kind") == "namespaces"
        served = bool(details.get("name"))
        if missing:
            return RefusalCause.NAMESPACE_MISSING
        return None if served else RefusalCause.KIND_NOT_SERVED
    if status == 409:
        return RefusalCause.FIELD_CONFLICT if "FieldManagerConflict" in reasons else None
    if "NamespaceTerminating" in reasons:
        return RefusalCause.NAMESPACE_TERMINATING
    if status == 500 or status in _REFUSING:
        return next((cause for text, cause in _SENTENCES if text in message), _REFUSING.get(status))
    return None


_REFUSING = {
    400: RefusalCause.INVALID,
    403: RefusalCause.NOT_ALLOWED,
    405: RefusalCause.OTHER,
    413: RefusalCause.OTHER,
    415: RefusalCause.OTHER,
    422: RefusalCause.INVALID,
}
"""Answers about the object itself by HTTP status; 401 is about our token, 429 and 503 about the server's load, and 500
about the object only where a webhook was asked."""
_SENTENCES = (
    ("failed calling webhook", RefusalCause.WEBHOOK_FAILED),
    ("denied the request", RefusalCause.DENIED_BY_WEBHOOK),
    ("ValidatingAdmissionPolicy", RefusalCause.DENIED_BY_POLICY),
    ("exceeded quota", RefusalCause.QUOTA_EXCEEDED),
)


def _error(
    status: int, answer: dict[str, Any], body: bytes, where: str, retry_after: str | None, withhold: bool
) -> KubeError:
    reason = str(answer.get("reason") or "")
    words = "" if withhold else str(answer.get("message") or body[:MESSAGE_LIMIT].decode("utf-8", "replace"))
    message = f"{where}: {status} {reason} {words}"
    if status == 404:
        return NotFound(message, status=status, reason=reason)
    if status == 409:
        return Conflict(message, status=status, reason=reason)
    if status == 410 or reason in {"Gone", "Expired"}:
        return Gone(message, status=status, reason=reason)
    if status == 429:
        return TooMany(message, status=status, reason=reason, retry_after=_seconds(retry_after, answer))
    if status in {401, 403}:
        return Forbidden(message, status=status, reason=reason)
    if status in {400, 422}:
        return Invalid(message, status=status, reason=reason, causes=[] if withhold else _causes(answer))
    if status >= 500:
        return Unavailable(message, status=status, reason=reason)
    return KubeError(message, status=status, reason=reason)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _causes(answer: dict[str, Any]) -> list[tuple[str, str]]:
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    if not isinstance(causes, list):
        return []
    return [
        (str(cause.get("field") or ""), bounded(str(cause.get("message") or "")))
        for cause in causes[:CAUSES_LIMIT]
        if isinstance(cause, dict)
    ]


def _seconds(header: str | None, answer: dict[str, Any]) -> float:
    details = answer.get("details")
    value = header or (details.get("retryAfterSeconds") if isinstance(details, dict) else None) or 0
    try:
        return min(max(float(value), 0.0), 60.0)
    except ValueError:
        return 0.0

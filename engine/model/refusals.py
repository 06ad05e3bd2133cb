"""What the API server refused: which object, why, and when it is tried again.

A worker records a refusal after it acted; passes read it, leave the object alone until its time comes, and say so. The
record ends when the server accepts the object, or when it is no longer wanted.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Final

import msgspec

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.times import rfc3339

FIRST_WAIT_MS: Final = 2_000
LONGEST_WAIT_MS: Final = 120_000
"""Longest time before another try, before the jitter."""
LONGEST_ANSWER: Final = 300
"""Most characters of the server's answer that are kept."""
_JITTER: Final = 0.25
_DOUBLINGS: Final = 12


class RefusalCause(StrEnum):
    """Why the API server refuses an object."""

    NAMESPACE_MISSING = "NamespaceMissing"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    KIND_NOT_SERVED = "KindNotServed"
    NOT_ALLOWED = "NotAllowed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    DENIED_BY_WEBHOOK = "DeniedByWebhook"
    WEBHOOK_FAILED = "WebhookFailed"
    DENIED_BY_POLICY = "DeniedByPolicy"
    INVALID = "Invalid"
    FIELD_CONFLICT = "FieldManagerConflict"
    OTHER = "Refused"


NEXT_STEP: Final[dict[RefusalCause, str]] = {
    RefusalCause.NAMESPACE_MISSING: "create the namespace, or correct metadata.namespace",
    RefusalCause.NAMESPACE_TERMINATING: "wait until the namespace is gone, then create it again",
    RefusalCause.KIND_NOT_SERVED: "install the definition of this kind (CRD), or correct apiVersion and kind",
    RefusalCause.NOT_ALLOWED: "grant Belay's engine this verb on this kind (deploy/base/rbac.yaml lists what it needs)",
    RefusalCause.QUOTA_EXCEEDED: "raise the ResourceQuota of the namespace, or ask for less",
    RefusalCause.DENIED_BY_WEBHOOK: "correct the document as the admission webhook asks",
    RefusalCause.WEBHOOK_FAILED: "mend the admission webhook: it does not answer",
    RefusalCause.DENIED_BY_POLICY: "correct the document as the admission policy asks",
    RefusalCause.INVALID: "correct the field that the answer names",
    RefusalCause.FIELD_CONFLICT: "let one manager own the field: remove it from the document or from the other manager",
    RefusalCause.OTHER: "read the answer of the API server",
}


class RefusalKey(msgspec.Struct, frozen=True, order=True):
    """What was tried on which object: ``verb`` is the action's kind, ``PatchObject/status`` for a status alone."""

    verb: str
    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def object(self) -> ObjectKey:
        """The object that was refused."""
        return ObjectKey(self.api_version, self.kind, self.namespace, self.name)


class ServerRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """One object that the API server refuses.

    ``digest`` names the content: another content is tried at once. ``since`` and ``retry`` are Unix milliseconds of the
    first refusal and of the next try; ``attempts`` counts the refusals in a row.
    """

    key: RefusalKey
    digest: str
    cause: RefusalCause
    answer: str
    file: str = ""
    line: int = 0
    revision: str = ""
    attempts: int = 1
    since: int = 0
    retry: int = 0

    def document(self) -> dict[str, Any]:
        """The entry of `belay plan` and of ``belay-sync``."""
        return {
            "action": self.key.verb,
            "object": str(self.key.object),
            "file": self.file,
            "line": self.line,
            "revision": self.revision,
            "cause": self.cause,
            "answer": self.answer,
            "attempts": self.attempts,
            "since": rfc3339(self.since / 1000),
            "retry": rfc3339(self.retry / 1000),
        }


def wait_ms(key: RefusalKey, attempts: int) -> int:
    """Milliseconds until the next try after so many refusals: doubling, bounded, and spread between objects."""
    wait = min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** min(attempts - 1, _DOUBLINGS))
    seed = hashlib.blake2b(f"{key}|{attempts}".encode(), digest_size=4).digest()
    spread = int.from_bytes(seed, "big") / 0xFFFFFFFF * 2 - 1
    return int(wait * (1 + _JITTER * spread))


def is_waiting(refusal: ServerRefusal, now_ms: int) -> bool:
    """Whether the next try is still to come; a time further off than any wait comes from a clock that ran ahead."""
    left = refusal.retry - now_ms
    return 0 < left <= LONGEST_WAIT_MS * (1 + _JITTER)

"""The webhook: signatures, payloads and rate limits of its calls.

A call only makes the controller fetch now. Its content is just logged, so a forged or repeated call costs a fetch.
Signatures: GitHub, Gitea and Forgejo send ``X-Hub-Signature-256``
(HMAC-SHA256 of the body), older Gitea ``X-Gitea-Signature``; GitLab sends the secret itself in ``X-Gitlab-Token``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from belay.engine.errors import InputError, bounded

MAX_BODY_BYTES: Final = 1024 * 1024
BURST: Final = 20
PER_SECOND: Final = 1.0
_CALLERS: Final = 1024
_FIELD_LIMIT: Final = 200
_EVENT_HEADERS: Final = ("X-GitHub-Event", "X-Gitea-Event", "X-Gogs-Event", "X-Forgejo-Event", "X-Gitlab-Event")


class Push(msgspec.Struct, frozen=True):
    """The content of a call. ``event`` is the sender's name for it, or empty."""

    event: str = ""
    repository: str = ""
    ref: str = ""
    after: str = ""

    @property
    def needs_fetch(self) -> bool:
        """Whether the controllers should fetch: not for GitHub's ``ping`` and events other than pushes."""
        return self.event.lower() in ("", "push", "create", "push hook", "tag push hook", "system hook")


def authentic(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether the caller knows the secret, compared in constant time; True for every caller without a secret."""
    if not secret:
        return True
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    claims = (
        (headers.get("X-Hub-Signature-256"), f"sha256={digest}"),
        (headers.get("X-Gitea-Signature"), digest),
        (headers.get("X-Gitlab-Token"), secret),
    )
    known = [hmac.compare_digest(_bytes(given), expected.encode()) for given, expected in claims if given is not None]
    return any(known)


def read(headers: Mapping[str, str], body: bytes) -> Push:
    """The push in a call: JSON, a form's ``payload``, or an empty body.

    Raises:
        InputError: the body is none of these.
    """
    event = next((headers[name] for name in _EVENT_HEADERS if name in headers), "")
    if not body.strip():
        return Push(_short(event))
    if headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
        body = _form(body)
    try:
        payload = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {bounded(str(error), _FIELD_LIMIT)}") from error
    if not isinstance(payload, dict):
        raise InputError("the body is not a push payload", hint="Send the payload of a push event, or nothing.")
    repository = payload.get("repository") or payload.get("project")
    where = repository if isinstance(repository, dict) else {}
    name = where.get("full_name") or where.get("path_with_namespace") or where.get("name")
    return Push(_short(event), _short(name), _short(payload.get("ref")), _short(payload.get("after")))


class Limiter:
    """A token bucket per caller: ``burst`` calls at once, ``rate`` per second afterwards. ``clock`` in seconds.

    It keeps a bounded number of callers; a dropped one starts with a full bucket.
    """

    def __init__(self, clock: Callable[[], float], *, burst: int = BURST, rate: float = PER_SECOND) -> None:
        self._clock, self._burst, self._rate = clock, burst, rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """0 when the call is allowed, else the seconds until the next one is."""
        now = self._clock()
        tokens, at = self._buckets.pop(caller, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - at) * self._rate)
        allowed = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - tokens) / self._rate


def _form(body: bytes) -> bytes:
    try:
        fields = parse_qs(body, max_num_fields=16)
    except ValueError as error:
        raise InputError("the form has more than 16 fields", hint="Send the payload of a push event alone.") from error
    return (fields.get(b"payload") or [b"null"])[0]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _short(value: Any) -> str:
    # header fields that are not UTF-8 hold surrogates, which no answer can carry
    return bounded(value, _FIELD_LIMIT).encode("utf-8", "replace").decode() if isinstance(value, str) else ""

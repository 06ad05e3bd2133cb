"""Tokens of callers, checked by the API server (TokenReview) and remembered for a short time.

A caller proves who it is with a service account token made for the audience ``belay``, which the API server itself does
not accept: a server that leaks one gives nothing else away. Source: Kubernetes documentation, "Service account token
volume projection" and "TokenReview v1 authentication.k8s.io".
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.kube import Kube, KubeError, Resource
from belay.engine.log import get
from belay.engine.serve.webhook import Limiter

_log = get("grpc.callers")
AUDIENCE: Final = "belay"
#: Where kubelet writes the token that a pod presents: deploy/ mounts it for servers and agents, jobs do it themselves.
TOKEN_FILE: Final = Path("/var/run/secrets/belay.dev/token")
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False)
ACCOUNT_PREFIX: Final = "system:serviceaccount:"
MAX_TOKEN_CHARS: Final = 16_384
#: Seconds for which a verdict counts: a token whose pod was deleted is accepted no longer than this.
GOOD_SECONDS: Final = 60.0
BAD_SECONDS: Final = 10.0
#: Verdicts that are kept, and reviews that run at one time.
MAX_KNOWN: Final = 8_192
MAX_RUNNING: Final = 64
REVIEW_SECONDS: Final = 10.0
#: Reviews of unknown tokens per address: at once, and per second afterwards.
REVIEW_BURST: Final = 64
REVIEW_RATE: Final = 4.0
_MAX_TEXT: Final = 200
_OWN_SECONDS: Final = 30.0


class Account(msgspec.Struct, frozen=True):
    """Whom a token stands for. ``pod``, ``pod_uid`` and ``node`` are empty if the token names none: API servers name
    the pod since 1.20 and the node since 1.30, and only in tokens that kubelet projects into pods.
    """

    namespace: str
    name: str
    pod: str = ""
    pod_uid: str = ""
    node: str = ""


class InvalidToken(Exception):
    """The token proves nothing; the text says why and what to do."""


class TokenNotChecked(Exception):
    """The token could not be checked now; trying again may help."""


class TokenReviews:
    """Asks the API server about tokens; each verdict is kept for a while, tokens themselves never are.

    ``clock`` is monotonic seconds, ``wall`` Unix seconds.
    """

    def __init__(
        self, kube: Kube, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._kube = kube
        self._clock, self._wall = clock, wall
        self._known: OrderedDict[bytes, tuple[float, Account | str]] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[Account | str]] = {}
        self._limiter = Limiter(clock, burst=REVIEW_BURST, rate=REVIEW_RATE)

    async def account(self, token: str, address: str) -> Account:
        """Whom the token stands for; ``address`` is the caller's, whose unknown tokens are counted.

        Raises:
            InvalidToken: the token is none, is for another audience, has expired, or its pod is gone.
            TokenNotChecked: the API server does not answer, or too many tokens are being checked.
        """
        wrong = _shape(token, self._wall())
        if wrong:
            raise InvalidToken(wrong)
        key = hashlib.sha256(token.encode()).digest()
        found = self._remembered(key)
        if found is None:
            found = await self._reviewed(key, token, address)
        if isinstance(found, str):
            raise InvalidToken(found)
        return found

    async def aclose(self) -> None:
        """End the reviews that run."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _remembered(self, key: bytes) -> Account | str | None:
        ends, found = self._known.get(key, (-math.inf, ""))
        return found if self._clock() < ends else None

    async def _reviewed(self, key: bytes, token: str, address: str) -> Account | str:
        """The verdict of a review; calls with the same token share one."""
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= MAX_RUNNING or self._limiter.wait(address) > 0:
                raise TokenNotChecked("too many tokens are being checked; try again")
            task = self._running[key] = asyncio.ensure_future(self._review(key, token))
            task.add_done_callback(lambda done: self._finished(key, done))
        # a caller that leaves must not take the review from the others
        return await asyncio.shield(task)

    def _finished(self, key: bytes, done: asyncio.Task[Account | str]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # its callers have it, unless all of them have left

    async def _review(self, key: bytes, token: str) -> Account | str:
        body = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                answer = await self._kube.create(TOKEN_REVIEWS, body)
        except (KubeError, TimeoutError) as error:
            _log.warning("token not checked", reason=str(error) or "the API server does not answer in time")
            raise TokenNotChecked("the API server cannot check the caller's token now; try again") from error
        found = verdict(answer.get("status"))
        seconds = BAD_SECONDS if isinstance(found, str) else min(GOOD_SECONDS, _expiry(token) - self._wall())
        self._known[key] = (self._clock() + seconds, found)
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return found


def verdict(status: Any) -> Account | str:
    """The account in a TokenReview's status, or why there is none."""
    status = status if isinstance(status, Mapping) else {}
    if status.get("authenticated") is not True:
        why = bounded(str(status.get("error") or "it is unknown to the API server"), _MAX_TEXT)
        return f"the token is not valid for audience {AUDIENCE}: {why}"
    # an API server that knows no audiences reports none: the token is then one for the API server
    audiences = status.get("audiences")
    if not isinstance(audiences, list) or AUDIENCE not in audiences:
        return f"the token is not for audience {AUDIENCE}"
    user = status.get("user") if isinstance(status.get("user"), Mapping) else {}
    name = str(user.get("username") or "")
    parts = name.removeprefix(ACCOUNT_PREFIX).split(":")
    if not name.startswith(ACCOUNT_PREFIX) or len(parts) != 2 or not all(parts):
        return f"the token is of {bounded(name, _MAX_TEXT)!r}, not of a ServiceAccount"
    extra = user.get("extra")
    pod, uid, node = (
        _only(extra, f"authentication.kubernetes.io/{key}") for key in ("pod-name", "pod-uid", "node-name")
    )
    return Account(parts[0], parts[1], pod, uid, node)


class OwnToken:
    """The token that this process presents to other servers; kubelet renews the file. Empty where there is none."""

    def __init__(self, file: Path = TOKEN_FILE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._read: tuple[float, str] = (-math.inf, "")

    def __call__(self) -> str:
        """The newest token."""
        if self._clock() - self._read[0] >= _OWN_SECONDS:
            try:
                with self._file.open("rb") as source:
                    text = source.read(MAX_TOKEN_CHARS).decode("ascii").strip()
            except (OSError, UnicodeDecodeError):
                text = ""
            self._read = (self._clock(), text)
        return self._read[1]


def _only(extra: Any, key: str) -> str:
    values = extra.get(key) if isinstance(extra, Mapping) else None
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""


def _shape(token: str, now: float) -> str:
    """What is wrong with a token that need not be sent to the API server; empty when it may be one."""
    if len(token) > MAX_TOKEN_CHARS or token.count(".") != 2 or not token.isascii():
        return "the authorization is no token of a ServiceAccount"
    claims = _claims(token)
    audiences = claims.get("aud")
    if AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]):
        return f"the token is not for audience {AUDIENCE}: project one with serviceAccountToken.audience: {AUDIENCE}"
    if _expiry(token) <= now:
        return "the token has expired: read its file again, kubelet renews it"
    return ""


def _expiry(token: str) -> float:
    """Unix seconds until which the token claims to be valid; 0 where it does not say."""
    value = _claims(token).get("exp")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12 else 0.0


def _claims(token: str) -> dict[str, Any]:
    """The claims of a token, not verified."""
    body = token.split(".")[1]
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = [
    "AUDIENCE",
    "TOKEN_FILE",
    "Account",
    "OwnToken",
    "InvalidToken",
    "TokenReviews",
    "TokenNotChecked",
    "verdict",
]

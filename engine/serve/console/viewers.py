"""Who may look. On loopback: all who can reach it. Elsewhere: those who signed in, may read the status, or come by a
proxy.

A bearer token is shown to the API server (TokenReview), and then asked whether its user may get ConfigMaps in Belay's
namespace (SubjectAccessReview); verdicts are kept for up to a minute, tokens never. An OIDC proxy that is named by its
address says in a header who its user is. The Host header is checked, so that a page elsewhere cannot reach a server on
loopback under a name of its own (DNS rebinding).

Source: Kubernetes documentation, "TokenReview v1 authentication.k8s.io" and "SubjectAccessReview v1
authorization.k8s.io".
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from belay.engine.errors import InputError, bounded
from belay.engine.kube import Kube, KubeError, Resource
from belay.engine.log import get
from belay.engine.serve.webhook import Limiter
from belay.engine.wire import names

if TYPE_CHECKING:  # only where people sign in, since it takes 7 MiB
    from belay.engine.serve.login.sessions import WebSession

_log = get("console")
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False)
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", False)
GOOD_SECONDS: Final = 60.0
BAD_SECONDS: Final = 10.0
MAX_KNOWN: Final = 4_096
MAX_TOKEN_CHARS: Final = 16_384
REVIEW_SECONDS: Final = 10.0
MAX_RUNNING: Final = 32
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_MOST_GROUPS: Final = 256

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class NotAdmitted(Exception):
    """A caller is shown nothing: HTTP ``status``, why, and what to do."""

    def __init__(self, status: int, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.hint = status, text, hint


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """``free``: on loopback, no proof is asked for. ``hosts``: names by which the server is reached (empty: any, unless
    free). ``proxy_header``: the header in which a proxy names its user, from these ``proxies`` only.
    """

    free: bool = True
    hosts: frozenset[str] = frozenset()
    proxy_header: str = ""
    proxies: tuple[Network, ...] = ()


def rules(*, free: bool, hosts: str = "", proxy_header: str = "", proxies: str = "") -> AccessRules:
    """The rules in settings; lists are separated by commas.

    Raises:
        InputError: an address is none, or a header is named without addresses that may send it.
    """
    networks = []
    for text in filter(None, (part.strip() for part in proxies.split(","))):
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            hint = "Write addresses or networks, such as 10.0.0.7 or 10.0.0.0/24, separated by commas."
            raise InputError(f"{text[:60]!r} is not an address", where="BELAY_CONSOLE_PROXIES", hint=hint) from error
    if proxy_header and not networks:
        raise InputError(
            "anyone could send the header", where="BELAY_CONSOLE_PROXY_HEADER",
            hint="Name the proxy's addresses in BELAY_CONSOLE_PROXIES.",
        )  # fmt: skip
    if proxy_header and not all(char.isascii() and (char.isalnum() or char == "-") for char in proxy_header):
        raise InputError(f"{proxy_header[:60]!r} is not the name of a header", where="BELAY_CONSOLE_PROXY_HEADER")
    named = frozenset(part.strip().lower() for part in hosts.split(",") if part.strip())
    return AccessRules(free=free, hosts=named, proxy_header=proxy_header, proxies=tuple(networks))


class Viewers:
    """Decides about callers. ``clock`` is monotonic seconds; without ``kube`` no token can be checked; ``session``
    reads whose session a request carries.
    """

    def __init__(
        self, rules: AccessRules, kube: Kube | None, clock: Callable[[], float] = time.monotonic,
        session: Callable[[Mapping[str, str]], WebSession | None] = lambda headers: None,
    ) -> None:  # fmt: skip
        self._rules, self._kube, self._clock, self._session = rules, kube, clock, session
        self._known: OrderedDict[bytes, tuple[float, float, str | NotAdmitted]] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[str]] = {}
        self._limiter = Limiter(clock)

    async def admit(self, headers: Mapping[str, str], host: str, address: str, *, fresh: float = math.inf) -> str:
        """The user's name, empty on loopback. ``host`` is the Host header, ``address`` the peer's. ``fresh``: seconds
        for which an earlier verdict may count at most, where the server itself asks again about a viewer.

        Raises:
            NotAdmitted: nothing may be shown.
        """
        self._check_host(host)
        if self._rules.free:
            return ""
        if self._rules.proxy_header and _within(address, self._rules.proxies):
            user = headers.get(self._rules.proxy_header, "").strip()
            if user:
                return bounded(user, 256)
        token = _bearer(headers.get("Authorization", ""))
        if not token and (session := self._session(headers)) is not None:
            return session.user
        if not token:
            raise NotAdmitted(
                401, "who are you?",
                "Send a token of the cluster (Authorization: Bearer …), or run `belay console` with your kubeconfig.",
            )  # fmt: skip
        return await self._reviewed(token, address, fresh)

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if self._rules.free:
            if name not in _LOCAL and name not in self._rules.hosts:
                raise NotAdmitted(421, "the server is not reached by this name", "Open it at http://127.0.0.1:PORT/.")
        elif self._rules.hosts and name not in self._rules.hosts:
            raise NotAdmitted(421, "the server is not reached by this name", "Name it in BELAY_CONSOLE_HOSTS.")

    async def _reviewed(self, token: str, address: str, fresh: float) -> str:
        if self._kube is None:
            raise NotAdmitted(503, "no token can be checked", "The server has no cluster: set BELAY_KUBECONFIG.")
        key = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        made, ends, found = self._known.get(key, (-math.inf, -math.inf, ""))
        if self._clock() < ends and self._clock() - made <= fresh:
            if isinstance(found, NotAdmitted):
                raise found
            return found
        task = self._running.get(key)
        if task is None:
            # a caller's rate is bounded, the server's own questions are as many as there are viewers
            if len(self._running) >= MAX_RUNNING or (math.isinf(fresh) and self._limiter.wait(address) > 0):
                raise NotAdmitted(429, "too many tokens are being checked", "Try again in a moment.")
            task = self._running[key] = asyncio.ensure_future(self._review(key, token))
            task.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(task)

    def _finished(self, key: bytes, done: asyncio.Task[str]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()

    async def _review(self, key: bytes, token: str) -> str:
        assert self._kube is not None
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                user = await _user_of(self._kube, token)
                await _may_read(self._kube, user)
        except (KubeError, TimeoutError) as error:
            _log.warning("viewer not checked", reason=bounded(str(error) or "no answer in time", 256))
            raise NotAdmitted(503, "the API server cannot check the token now", "Try again.") from error
        except NotAdmitted as refused:
            self._keep(key, refused, BAD_SECONDS)
            raise
        name = bounded(str(user.get("username") or ""), 256)
        self._keep(key, name, GOOD_SECONDS)
        return name

    def _keep(self, key: bytes, verdict: str | NotAdmitted, seconds: float) -> None:
        self._known[key] = (self._clock(), self._clock() + seconds, verdict)
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


async def _user_of(kube: Kube, token: str) -> dict[str, Any]:
    """The user of a token; raises NotAdmitted (401) for one that the API server does not accept."""
    body = {
        "apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": token},
    }  # fmt: skip
    status = (await kube.create(TOKEN_REVIEWS, body)).get("status")
    status = status if isinstance(status, dict) else {}
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
        raise NotAdmitted(401, "the cluster does not accept the token", "Get a new one: kubectl create token NAME.")
    return user


async def _may_read(kube: Kube, user: Mapping[str, Any]) -> None:
    """Raises NotAdmitted (403) where a user may not read Belay's ConfigMaps."""
    groups = user.get("groups")
    extra = user.get("extra")
    spec = {
        "user": user["username"],
        "uid": user.get("uid") or "",
        "groups": [str(one) for one in groups[:_MOST_GROUPS]] if isinstance(groups, list) else [],
        "extra": extra if isinstance(extra, dict) else {},
        "resourceAttributes": {"namespace": names.SYSTEM, "verb": "get", "resource": "configmaps", "version": "v1"},
    }
    body = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    status = (await kube.create(ACCESS_REVIEWS, body)).get("status")
    if not isinstance(status, dict) or status.get("allowed") is not True:
        raise NotAdmitted(
            403, f"you may not read ConfigMaps in {names.SYSTEM}",
            f"Ask for a Role with get on configmaps in {names.SYSTEM} (docs/console.md).",
        )  # fmt: skip


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        return ""
    return token


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    text = host.strip().lower()
    if text.startswith("["):
        name, closed, _ = text[1:].partition("]")
        return name if closed else ""
    return text.rpartition(":")[0] if text.rpartition(":")[2].isdecimal() and ":" in text else text


def _within(address: str, networks: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in networks)

"""Who calls: by a token of its pod, by its client certificate, or, where the operator allows it, by its address.

A relayed call carries what its client presented. What the relaying server adds of its own (the client's address and
certificate) counts only when that server proves to be one: by its token, or by the certificate that all servers share.
"""

from __future__ import annotations

import contextvars
import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Protocol

import grpc
import msgspec

from belay.engine.errors import bounded
from belay.engine.model.cluster import Pod
from belay.engine.serve.grpc.streams import Context, peer_host
from belay.engine.serve.grpc.token_reviews import (
    ACCOUNT_PREFIX,
    Account,
    InvalidToken,
    OwnToken,
    TokenNotChecked,
    TokenReviews,
)
from belay.engine.wire.names import NODES, SYSTEM

#: Metadata of a relayed call: the client's address, its name in a certificate, and the token of the relaying server.
RELAYED: Final = "x-belay-relayed"
RELAYED_NAME: Final = "x-belay-relayed-name"
RELAY_TOKEN: Final = "x-belay-relay-token"
AUTHORIZATION: Final = "authorization"
BEARER: Final = "Bearer "
SERVER_ACCOUNT: Final = (SYSTEM, "belay-server")
AGENT_ACCOUNT: Final = (NODES, "belay-agent")
_NODE_PREFIX: Final = "system:node:"
_SPIFFE: Final = re.compile(r"spiffe://[^/]+/ns/([a-z0-9-]{1,63})/sa/([a-z0-9.-]{1,253})")
_MAX_NAME: Final = 512

Mode = Literal["known", "address", "any"]


class Proof(enum.StrEnum):
    """How a caller proved who it is, the strongest first."""

    TOKEN = "token"
    CERTIFICATE = "certificate"
    ADDRESS = "address"
    NONE = "none"


class Caller(msgspec.Struct, frozen=True):
    """Who calls. ``pod_uid`` is empty for callers that are no pod, ``node`` unless the proof names one.

    ``pods`` are keys of the pods that may be speaking: the one of the token, or, by address, all that share it
    (``shared``: those in the network of their node, which cannot be kept apart).
    """

    proof: Proof = Proof.NONE
    address: str = ""
    namespace: str = ""
    account: str = ""
    pods: tuple[str, ...] = ()
    pod_uid: str = ""
    node: str = ""
    shared: bool = False

    @property
    def title(self) -> str:
        """The caller in messages."""
        if self.proof is Proof.ADDRESS:
            return f"pod {self.pods[0]}" if not self.shared else f"a pod in the network of the node at {self.address}"
        if self.pods:
            return f"pod {self.pods[0]}"
        if self.node and not self.account:
            return f"node {self.node}"
        return f"ServiceAccount {self.namespace}/{self.account}" if self.account else f"the caller at {self.address}"


ANYONE: Final = Caller()
_CURRENT: Final[contextvars.ContextVar[Caller]] = contextvars.ContextVar("caller", default=ANYONE)


def caller(context: Context) -> str:
    """The address of the client of the call under way, also of a relayed one."""
    return _CURRENT.get().address or peer_host(context.peer())


def remember(found: Caller) -> None:
    """Make ``found`` the caller of the call under way."""
    _CURRENT.set(found)


class PodTable(Protocol):
    """The pods of the cluster as far as callers are found by them."""

    def pod(self, key: str) -> Pod | None:
        """Return the pod ``namespace/name``; None without it."""
        ...

    def at_address(self, address: str) -> Iterable[Pod]:
        """The live pods with this address."""
        ...

    def account_of(self, pod: Pod) -> str:
        """The name of the pod's ServiceAccount."""
        ...


class Callers:
    """Finds out who calls. ``own_certificate`` gives the PEM that the servers share; None without TLS."""

    def __init__(
        self,
        reviews: TokenReviews,
        pods: PodTable,
        *,
        mode: Mode,
        own_token: Callable[[], str] | None = None,
        own_certificate: Callable[[], bytes] | None = None,
    ) -> None:
        self.mode: Mode = mode
        self._reviews = reviews
        self._pods = pods
        self._own_token = own_token or OwnToken()
        self._own_certificate = own_certificate

    async def identify(self, context: Context) -> Caller:
        """The caller of a call that this server serves. Aborts the call when its token proves nothing."""
        metadata = _metadata(context)
        address, subject = peer_host(context.peer()), _subject(context.auth_context())
        if self.mode == "any":
            return Caller(address=metadata.get(RELAYED, address))
        if RELAYED in metadata and await self._is_server(context, metadata, address):
            address, subject = metadata[RELAYED][:_MAX_NAME], metadata.get(RELAYED_NAME, "")[:_MAX_NAME]
        given = metadata.get(AUTHORIZATION, "")
        if given.startswith(BEARER):
            return self._of_account(await self._account(given.removeprefix(BEARER), address, context), address)
        named = _named(subject, address)
        if named is not None:
            return named
        return self._by_address(address) if self.mode == "address" else Caller(address=address)

    def relayed_metadata(self, context: Context) -> tuple[tuple[str, str], ...]:
        """What a call that is relayed carries about its client, and about this server."""
        given = _metadata(context).get(AUTHORIZATION, "")
        rows = ((RELAYED, peer_host(context.peer())), (RELAYED_NAME, _subject(context.auth_context())))
        own = self._own_token()
        more = ((AUTHORIZATION, given), (RELAY_TOKEN, own))
        return (*(row for row in rows if row[1]), *(row for row in more if row[1]))

    async def aclose(self) -> None:
        """End the checks that run."""
        await self._reviews.aclose()

    async def _account(self, token: str, address: str, context: Context) -> Account:
        try:
            return await self._reviews.account(token.strip(), address)
        except InvalidToken as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{address}: {error}")
        except TokenNotChecked as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort raises")

    async def _is_server(self, context: Context, metadata: Mapping[str, str], address: str) -> bool:
        """Whether the peer that relays a call is a server of ours; others only speak for themselves."""
        if self._own_certificate is not None:
            shown = context.auth_context().get("x509_pem_cert")
            if any(one.strip() and one.strip() in self._own_certificate() for one in shown or ()):
                return True
        if not metadata.get(RELAY_TOKEN):
            return False
        try:
            account = await self._reviews.account(metadata[RELAY_TOKEN], address)
        except InvalidToken:
            return False
        except TokenNotChecked as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort raises") from error
        return (account.namespace, account.name) == SERVER_ACCOUNT

    def _of_account(self, account: Account, address: str) -> Caller:
        key = f"{account.namespace}/{account.pod}" if account.pod else ""
        pod = self._pods.pod(key) if key else None
        same = pod is not None and pod.uid == account.pod_uid
        return Caller(
            proof=Proof.TOKEN,
            address=address,
            namespace=account.namespace,
            account=account.name,
            pods=(key,) if key else (),
            pod_uid=account.pod_uid,
            node=account.node or (pod.node if pod is not None and same else ""),
        )

    def _by_address(self, address: str) -> Caller:
        """The pod with the address, or the pods that share it; no caller where other pods have it too."""
        found = list(self._pods.at_address(address))
        shared = bool(found) and all(pod.host_network for pod in found)
        if not found or (len(found) > 1 and not shared):
            return Caller(address=address)
        if shared:
            keys = tuple(sorted(pod.key for pod in found))
            return Caller(proof=Proof.ADDRESS, address=address, pods=keys, shared=True)
        (pod,) = found
        account = self._pods.account_of(pod)
        return Caller(
            proof=Proof.ADDRESS, address=address, namespace=pod.namespace, account=account, pods=(pod.key,),
            pod_uid=pod.uid,
        )  # fmt: skip


def _metadata(context: Context) -> dict[str, str]:
    """The texts of the call's metadata; of a key given twice the first counts."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found.setdefault(key, value)
    return found


def _subject(auth: Mapping[str, Iterable[bytes]]) -> str:
    """The name in the client's certificate: a SPIFFE id, else the common name; empty without one."""
    for key in ("peer_spiffe_id", "x509_common_name"):
        for value in auth.get(key) or ():
            return value.decode("utf-8", "replace")[:_MAX_NAME]
    return ""


def _named(subject: str, address: str) -> Caller | None:
    """The caller that a certificate's name stands for: a ServiceAccount or a node, named as Kubernetes names them."""
    workload = _SPIFFE.fullmatch(subject)
    if workload:
        return Caller(proof=Proof.CERTIFICATE, address=address, namespace=workload[1], account=workload[2])
    if subject.startswith(_NODE_PREFIX) and len(subject) > len(_NODE_PREFIX):
        return Caller(proof=Proof.CERTIFICATE, address=address, node=subject.removeprefix(_NODE_PREFIX))
    parts = subject.removeprefix(ACCOUNT_PREFIX).split(":")
    if subject.startswith(ACCOUNT_PREFIX) and len(parts) == 2 and all(parts):
        return Caller(proof=Proof.CERTIFICATE, address=address, namespace=parts[0], account=parts[1])
    return None


def accounts_of(text: str) -> frozenset[tuple[str, str]]:
    """The ServiceAccounts of a setting, ``namespace/name`` separated by commas.

    Raises:
        ValueError: an entry has another form; the text names it.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    found = set()
    for entry in entries:
        namespace, slash, name = entry.partition("/")
        if not (slash and namespace and name) or "/" in name:
            raise ValueError(f"{bounded(entry, 80)!r} is not a ServiceAccount: write namespace/name")
        found.add((namespace, name))
    return frozenset(found)


__all__ = [
    "AGENT_ACCOUNT", "ANYONE", "RELAYED", "Caller", "Callers", "Mode", "PodTable", "Proof", "accounts_of", "caller",
    "remember",
]  # fmt: skip

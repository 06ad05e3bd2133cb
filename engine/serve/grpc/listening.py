"""Publishes that a server cannot serve gRPC: in ConfigMap ``belay-server``, which ``belay status`` shows, and an Event.

Without it only the log of the process says so, and ranks wait for a recovery service that no one serves. Each server
has a key of its own in the ConfigMap; a server that serves removes its own, and those of servers that have not
repeated theirs.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError
from belay.engine.log import get
from belay.engine.model.labels import ABOUT_LABEL, MANAGED_BY
from belay.engine.wire import names

_log = get("grpc.listening")
REASON: Final = "GRPCNotServed"
REPEAT_SECONDS: Final = 300.0
"""A server whose services are off says so as often; one that ends at once is started again by Kubernetes."""
LASTS_SECONDS: Final = 4 * REPEAT_SECONDS
_TRIES: Final = 4
_LONGEST: Final = 1000


async def publish_problem(kube: Kube, identity: str, problem: str, now: float) -> None:
    """Publish why this server does not serve gRPC; an empty ``problem`` withdraws it. ``now`` is Unix seconds.

    Never raises KubeError: whether the process goes on is not decided here.
    """
    try:
        written = await _write(kube, identity, problem[:_LONGEST], now)
        if problem and written is not None:
            await kube.event(written, REASON, problem, now=now, kind="Warning", component="belay-server")
    except KubeError as error:
        _log.warning("not published", problem=problem, reason=str(error))


async def _write(kube: Kube, identity: str, problem: str, now: float) -> dict[str, Any] | None:
    """Renew this server's key; returns the ConfigMap, or None if there is none and none is needed."""
    key = _key(identity)
    for _ in range(_TRIES):
        live = await kube.get(CONFIGMAP, names.SERVER, names.SYSTEM)
        known = {name: text for name, text in ((live or {}).get("data") or {}).items() if _lasts(text, now)}
        known.pop(key, None)
        if problem:
            row = {"server": identity, "time": int(now), "message": problem}
            known[key] = msgspec.json.encode(row).decode()
        if live is None and not known:
            return None
        metadata = dict((live or {}).get("metadata") or {"name": names.SERVER, "namespace": names.SYSTEM})
        metadata.pop("managedFields", None)
        metadata["labels"] = {
            **(metadata.get("labels") or {}), ABOUT_LABEL: "server", MANAGED_BY: "belay",
        }  # fmt: skip
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": known}
        if live is not None and live.get("data", {}) == known:
            return body
        try:
            written = await (kube.create(CONFIGMAP, body) if live is None else kube.replace(CONFIGMAP, body))
        except Conflict:
            continue
        return {**body, "metadata": written.get("metadata") or metadata}
    return None


def _key(identity: str) -> str:
    """A key that any identity has."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _lasts(text: str, now: float) -> bool:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    time = row.get("time") if isinstance(row, dict) else None
    return isinstance(time, int) and now - time < LASTS_SECONDS

"""The port to Kubernetes: objects as dicts, list and watch with backoff, bulk writes.

async with Kube.from_config() as kube:
    node = await kube.get(NODE, "node-1")
    async for outcome in many([lambda: kube.apply(obj) for obj in objects]):
        ...

Each name is imported on first use, so that a command that asks once (``ask_once``) loads no client of HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from belay.engine.kube.backoff import Backoff
    from belay.engine.kube.bulk import CallOutcome, run_many
    from belay.engine.kube.cancellation import cancel_all, run_all
    from belay.engine.kube.client import BIND_SECONDS, FIELD_MANAGER, Kube, PatchKind
    from belay.engine.kube.endpoint import Endpoint
    from belay.engine.kube.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, TooMany, Unavailable
    from belay.engine.kube.lister import Lister, Listing, Object
    from belay.engine.kube.one_shot import ask_once
    from belay.engine.kube.reflector import Key, Reflector, WatchChange
    from belay.engine.kube.resources import (
        CONFIGMAP,
        EVENT,
        LEASE,
        NAMESPACE,
        NODE,
        POD,
        Resource,
        resource_for,
        resource_of,
    )
    from belay.engine.kube.transport import Transport

#: Where the names of this door are defined.
_DEFINED: Final = {
    "BIND_SECONDS": "client",
    "Backoff": "backoff",
    "CONFIGMAP": "resources",
    "CallOutcome": "bulk",
    "Conflict": "errors",
    "EVENT": "resources",
    "Endpoint": "endpoint",
    "FIELD_MANAGER": "client",
    "Forbidden": "errors",
    "Gone": "errors",
    "Invalid": "errors",
    "Key": "reflector",
    "Kube": "client",
    "KubeError": "errors",
    "LEASE": "resources",
    "Lister": "lister",
    "Listing": "lister",
    "NAMESPACE": "resources",
    "NODE": "resources",
    "NotFound": "errors",
    "Object": "lister",
    "POD": "resources",
    "PatchKind": "client",
    "Reflector": "reflector",
    "Resource": "resources",
    "TooMany": "errors",
    "Transport": "transport",
    "Unavailable": "errors",
    "WatchChange": "reflector",
    "ask_once": "one_shot",
    "cancel_all": "cancellation",
    "resource_for": "resources",
    "resource_of": "resources",
    "run_all": "cancellation",
    "run_many": "bulk",
}


def __getattr__(name: str) -> Any:
    """Imports a name of the door on first use."""
    if name not in _DEFINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_DEFINED[name]}"), name)
    globals()[name] = found
    return found


__all__ = [
    "BIND_SECONDS",
    "Backoff",
    "CONFIGMAP",
    "CallOutcome",
    "Conflict",
    "EVENT",
    "Endpoint",
    "FIELD_MANAGER",
    "Forbidden",
    "Gone",
    "Invalid",
    "Key",
    "Kube",
    "KubeError",
    "LEASE",
    "Lister",
    "Listing",
    "NAMESPACE",
    "NODE",
    "NotFound",
    "Object",
    "POD",
    "PatchKind",
    "Reflector",
    "Resource",
    "TooMany",
    "Transport",
    "Unavailable",
    "WatchChange",
    "ask_once",
    "cancel_all",
    "resource_for",
    "resource_of",
    "run_all",
    "run_many",
]

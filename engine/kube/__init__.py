"""The port to Kubernetes: objects as dicts, list and watch with backoff, bulk writes.

async with Kube.from_config() as kube:
    node = await kube.get(NODE, "node-1")
    async for outcome in many([lambda: kube.apply(obj) for obj in objects]):
        ...
"""

from __future__ import annotations

from belay.engine.kube.backoff import Backoff
from belay.engine.kube.bulk import CallOutcome, run_many
from belay.engine.kube.cancellation import cancel_all, run_all
from belay.engine.kube.client import BIND_SECONDS, FIELD_MANAGER, Kube, Listing, Object, PatchKind
from belay.engine.kube.credentials import Endpoint
from belay.engine.kube.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, TooMany, Unavailable
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

__all__ = [
    "BIND_SECONDS",
    "CONFIGMAP",
    "EVENT",
    "FIELD_MANAGER",
    "LEASE",
    "NAMESPACE",
    "NODE",
    "POD",
    "Backoff",
    "WatchChange",
    "Conflict",
    "Endpoint",
    "Forbidden",
    "Gone",
    "Invalid",
    "Key",
    "Kube",
    "KubeError",
    "Listing",
    "NotFound",
    "Object",
    "CallOutcome",
    "PatchKind",
    "Reflector",
    "Resource",
    "TooMany",
    "Transport",
    "Unavailable",
    "cancel_all",
    "run_many",
    "resource_for",
    "resource_of",
    "run_all",
]

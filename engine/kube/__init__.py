"""The port to Kubernetes: raw dicts, own list and watch with backoff, bulk writes.

async with Kube.from_config() as kube:
    node = await kube.get(NODE, "node-1")
    async for outcome in many([lambda: kube.apply(obj) for obj in objects]):
        ...
"""

from __future__ import annotations

from engine.kube.backoff import Backoff
from engine.kube.bulk import Outcome, many
from engine.kube.client import FIELD_MANAGER, Kube, Listing, Object, PatchKind
from engine.kube.credentials import Endpoint
from engine.kube.ending import end, together
from engine.kube.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, TooMany, Unavailable
from engine.kube.reflector import Change, Key, Reflector
from engine.kube.resources import CONFIGMAP, EVENT, LEASE, NAMESPACE, NODE, POD, Resource, resource_for, resource_of
from engine.kube.transport import Transport

__all__ = [
    "CONFIGMAP",
    "EVENT",
    "FIELD_MANAGER",
    "LEASE",
    "NAMESPACE",
    "NODE",
    "POD",
    "Backoff",
    "Change",
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
    "Outcome",
    "PatchKind",
    "Reflector",
    "Resource",
    "TooMany",
    "Transport",
    "Unavailable",
    "end",
    "many",
    "resource_for",
    "resource_of",
    "together",
]

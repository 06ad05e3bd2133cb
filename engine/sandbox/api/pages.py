"""Paths outside the resources: discovery, OpenAPI and version."""

from __future__ import annotations

from belay.engine.sandbox.api import discovery, openapi
from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry
from belay.engine.sandbox.api.requests import Accept


def document(
    registry: ResourceRegistry, address: str, prefix: str, path: str, accept: Accept
) -> tuple[JSON, str] | None:
    """Return the document at a path outside the resources and its content type; None for an unknown path."""
    path = path.rstrip("/")
    plain = "application/json"
    if accept.discovery and path in ("/api", "/apis"):
        form = f"{plain};g=apidiscovery.k8s.io;v={accept.discovery};as=APIGroupDiscoveryList"
        return discovery.aggregated(registry, path == "/api", accept.discovery), form
    parts = path.split("/")[1:]
    made: JSON | None = None
    match parts:
        case ["version"]:
            made = discovery.version()
        case [""]:
            made = {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        case ["api"]:
            made = discovery.core_versions(address)
        case ["api", version]:
            made = discovery.resources(registry, "", version)
        case ["apis"]:
            made = discovery.groups(registry)
        case ["apis", group]:
            made = discovery.group(registry, group)
        case ["apis", group, version]:
            made = discovery.resources(registry, group, version)
        case ["openapi", "v3"]:
            made = openapi.index(registry, prefix)
        case ["openapi", "v3", "api", version]:
            made = openapi.document(registry, "", version)
        case ["openapi", "v3", "apis", group, version]:
            made = openapi.document(registry, group, version)
    return None if made is None else (made, plain)


def is_discovery(path: str) -> bool:
    """Whether a path only describes the server.

    Open, since `kubectl get --raw` leaves the token's path out.
    """
    parts = path.strip("/").split("/")
    return parts[0] == "openapi" or (parts[0] == "api" and len(parts) <= 2) or (parts[0] == "apis" and len(parts) <= 3)

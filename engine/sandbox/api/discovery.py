"""Discovery: the served groups, versions and resources, in the old and the aggregated form."""

from __future__ import annotations

import platform

from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry, ServedResource

VERSION = ("1", "29", "v1.29.0")
_COMMIT = "3f7a50f38688eb332e2a1b013678c6435d539ae6"


def version() -> JSON:
    """Return /version: the release that the server emulates."""
    major, minor, full = VERSION
    return {
        "major": major,
        "minor": minor,
        "gitVersion": full,
        "gitCommit": _COMMIT,
        "gitTreeState": "clean",
        "buildDate": "2023-12-13T08:45:27Z",
        "goVersion": "go1.21.5",
        "compiler": "gc",
        "platform": f"linux/{'arm64' if platform.machine() == 'aarch64' else 'amd64'}",
    }


def core_versions(address: str) -> JSON:
    """Return /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def _group(name: str, versions: list[str]) -> JSON:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def groups(registry: ResourceRegistry) -> JSON:
    """Return /apis."""
    listed = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(registry: ResourceRegistry, name: str) -> JSON | None:
    """Return /apis/<group>, None when it is not served."""
    versions = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions and name else None


def _subresources(resource: ServedResource) -> list[tuple[str, str, str, str, list[str]]]:
    found: list[tuple[str, str, str, str, list[str]]] = []
    for name, sub_group, sub_version, kind in resource.subresources:
        verbs = {
            "log": ["get"],
            "binding": ["create"],
            "eviction": ["create"],
            "token": ["create"],
            "finalize": ["update"],
        }
        found.append((name, sub_group, sub_version, kind, verbs.get(name, ["get", "patch", "update"])))
    if resource.status:
        found.append(("status", resource.group, resource.version, resource.kind, ["get", "patch", "update"]))
    return found


def resources(registry: ResourceRegistry, group_name: str, group_version: str) -> JSON | None:
    """Return /apis/<group>/<version>, None when it is not served."""
    served = registry.within(group_name, group_version)
    if not served:
        return None
    listed: list[JSON] = []
    for resource in served:
        row: JSON = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short:
            row["shortNames"] = list(resource.short)
        if resource.categories:
            row["categories"] = list(resource.categories)
        listed.append(row)
        for name, sub_group, sub_version, kind, verbs in _subresources(resource):
            sub: JSON = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
            if (sub_group, sub_version) != (resource.group, resource.version):
                sub |= {"group": sub_group, "version": sub_version}
            listed.append(sub | {"kind": kind, "verbs": verbs})
    full = f"{group_name}/{group_version}" if group_name else group_version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": listed}


def aggregated(registry: ResourceRegistry, core: bool, version_name: str) -> JSON:
    """Return /api or /apis in the aggregated form, which newer clients request first: all resources in one response."""
    items: list[JSON] = []
    for name, versions in registry.groups().items():
        if core == bool(name):
            continue
        shown = [
            {"version": v, "resources": [_aggregated(r) for r in registry.within(name, v)], "freshness": "Current"}
            for v in versions
        ]
        items.append({"metadata": {"name": name, "creationTimestamp": None}, "versions": shown})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version_name}",
        "metadata": {},
        "items": items,
    }


def _aggregated(resource: ServedResource) -> JSON:
    row: JSON = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        row["shortNames"] = list(resource.short)
    if resource.categories:
        row["categories"] = list(resource.categories)
    subresources = [
        {"subresource": name, "responseKind": {"group": g, "version": v, "kind": kind}, "verbs": verbs}
        for name, g, v, kind, verbs in _subresources(resource)
    ]
    if subresources:
        row["subresources"] = subresources
    return row

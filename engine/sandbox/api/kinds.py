"""Served resources: one `ServedResource` per group, version and plural, and their registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from belay.engine.sandbox.api.schema import JSON as JSON
from belay.engine.sandbox.api.schema import SchemaNode

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Table; `path` is the JSONPath of a CRD's printer column, empty for columns made in code."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The fields of a kind's replica counts, as dotted paths."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "status.labelSelector"


@dataclass(slots=True, eq=False)
class ServedResource:
    """One served resource.

    `storage` names the collection, which all versions of a kind share. `status`: whether status is a subresource,
    `generation` whether metadata.generation is kept. `custom` marks kinds that a CustomResourceDefinition brought;
    `crd_schema` is then the OpenAPI v3 schema of the version, `columns` its printer columns.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    scale: ScalePaths | None = None
    subresources: tuple[tuple[str, str, str, str], ...] = ()
    generation: bool = False
    verbs: tuple[str, ...] = ALL_VERBS
    singular: str = ""
    list_kind: str = ""
    storage: str = ""
    custom: bool = False
    node: SchemaNode | None = None
    crd_schema: JSON | None = None
    columns: tuple[Column, ...] = ()
    storage_version: bool = True
    model: str = ""
    selectable: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self.singular = self.singular or self.kind.lower()
        self.list_kind = self.list_kind or f"{self.kind}List"
        self.storage = self.storage or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`plural.group`, as error messages name a resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class ResourceRegistry:
    """All served resources; CustomResourceDefinitions change it at run time."""

    def __init__(self) -> None:
        self._resources: dict[tuple[str, str, str], ServedResource] = {}
        self.generation = 0

    def add(self, resource: ServedResource) -> None:
        """Serve `resource`, replacing an earlier one of the same group, version and plural."""
        self._resources[resource.group, resource.version, resource.plural] = resource
        self.generation += 1

    def remove(self, resource: ServedResource) -> None:
        """Stop serving `resource`."""
        if self._resources.pop((resource.group, resource.version, resource.plural), None):
            self.generation += 1

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        """Return the resource of a path, or None."""
        return self._resources.get((group, version, plural))

    def of_kind(self, group: str, kind: str) -> ServedResource | None:
        """Return the resource of an ownerReference or a manifest, any version."""
        for resource in self._resources.values():
            if resource.group == group and resource.kind == kind:
                return resource
        return None

    def of_storage(self, storage: str) -> ServedResource | None:
        """Return the resource whose version is stored in the collection."""
        for resource in self._resources.values():
            if resource.storage == storage and resource.storage_version:
                return resource
        return None

    def groups(self) -> dict[str, list[str]]:
        """Return group → versions, newest first, in the order of registration; the core group is the empty name."""
        found: dict[str, list[str]] = {}
        for resource in self._resources.values():
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return {group: sorted(versions, key=version_rank) for group, versions in found.items()}

    def within(self, group: str, version: str) -> list[ServedResource]:
        """Return the resources of one group and version, by plural."""
        found = [r for r in self._resources.values() if r.group == group and r.version == version]
        return sorted(found, key=lambda resource: resource.plural)

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(list(self._resources.values()))


def version_rank(version: str) -> tuple[int, int, int]:
    """Sort key that puts v2 before v1 before v1beta1 before v1alpha1, as Kubernetes orders versions."""
    major, _, rest = version.removeprefix("v").partition("alpha")
    stage = 2 if rest or "alpha" in version else 0
    if not stage:
        major, _, rest = version.removeprefix("v").partition("beta")
        stage = 1 if rest or "beta" in version else 0
    numbers = [int(part) if part.isdigit() else 0 for part in (major, rest)]
    return stage, -numbers[0], -numbers[1]

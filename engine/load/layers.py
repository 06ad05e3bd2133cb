"""Layers of documents: shipped policies, repository, ``--policies`` folders; later ones override by kind and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from belay.engine.documents import (
    BelayDocument,
    Declared,
    Desired,
    FaultTable,
    Manifest,
    NodePool,
    Product,
    SchedulingSettings,
    VNPULayout,
    VNPUTemplates,
)
from belay.engine.documents.kinds import API_VERSION
from belay.engine.load.parser import FileEntry
from belay.engine.load.references import KnownNames
from belay.engine.model.diagnostics import ObjectKey

DocumentT = TypeVar("DocumentT", bound=BelayDocument)


class LayerItem(NamedTuple):
    """A usable document and the path it was read from."""

    entry: FileEntry
    path: str


Layer = dict[ObjectKey, LayerItem]


def is_belay(key: ObjectKey) -> bool:
    """Whether a key names one of Belay's own kinds."""
    return key.api_version == API_VERSION


def documents_of(layer: Mapping[ObjectKey, LayerItem], kind: type[DocumentT]) -> dict[str, Declared[DocumentT]]:
    """The documents of one of Belay's kinds, by name, in order of name."""
    found: dict[str, Declared[DocumentT]] = {}
    for key in sorted(key for key in layer if key.kind == kind.KIND and is_belay(key)):
        value = layer[key].entry.value
        if isinstance(value, Declared) and isinstance(value.document, kind):
            found[key.name] = Declared(value.document, value.origin)
    return found


def manifests_of(layer: Mapping[ObjectKey, LayerItem]) -> tuple[Manifest, ...]:
    """The user manifests, sorted by key."""
    found = [item.entry.value for item in layer.values() if isinstance(item.entry.value, Manifest)]
    found.sort(key=lambda manifest: (
        manifest.key.api_version, manifest.key.kind, manifest.key.namespace, manifest.key.name
    ))  # fmt: skip
    return tuple(found)


def names_of(layer: Mapping[ObjectKey, LayerItem], broken: Iterable[ObjectKey]) -> KnownNames:
    """The names that documents may refer to."""
    belay = {key: item for key, item in layer.items() if is_belay(key)}

    def plain(kind: type[DocumentT]) -> dict[str, DocumentT]:
        return {name: declared.document for name, declared in documents_of(belay, kind).items()}

    declared_broken = frozenset((key.kind, key.name) for key in broken if is_belay(key))
    settings = Desired(scheduling=tuple(documents_of(belay, SchedulingSettings).values())).settings
    return KnownNames(
        products=plain(Product),
        templates=plain(VNPUTemplates),
        tables=plain(FaultTable),
        pools=plain(NodePool),
        broken=declared_broken,
        layouts=tuple(plain(VNPULayout).values()),
        schedulers=tuple(settings.scheduler_names),
    )

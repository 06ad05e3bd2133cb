"""Documents of Belay's own kinds in the cluster: copies of Git's documents, and foreign ones.

A copy is recognised by the inventory in ``belay-sync``, which is written before the copy is created; without an
inventory by the label and digest that Belay puts on it. Every other object is foreign and counts only where
``SchedulingSettings.spec.clusterDocuments`` names its kind.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from belay.engine.documents import CLUSTER, CLUSTER_KINDS, SHIPPED, Declared, Desired
from belay.engine.documents.kinds import API_VERSION
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.labels import APPLIED_DIGEST, BELAY_PREFIX, MANAGED_BY
from belay.engine.model.last_changes import LastChange, Place
from belay.engine.wire import names, sync

_SYNC: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)

#: The fields of ``Desired`` that hold Belay's own documents.
_FIELDS: Final = (
    "isolations", "fault_policies", "pools", "layouts", "budgets", "scheduling", "links", "products", "fault_tables",
    "templates", "diagnosis", "workloads",
)  # fmt: skip

#: Places of documents that are declared no more, which are kept.
MAX_FORMER: Final = 100

Objects = Iterable[Mapping[str, Any]]


def all_documents(objects: Objects) -> dict[str, bytes]:
    """All of Belay's documents among these objects, as files; what is declared in a cluster without an engine."""
    return {_path(obj): _body(obj) for obj in objects if _is_belay(obj)}


def copies_from_git(objects: Collection[Mapping[str, Any]]) -> dict[str, bytes]:
    """Copies of Git's documents that are in force, as files that ``load`` reads."""
    inventory, ignored = _sync_report(objects)
    found = {}
    for obj in objects:
        if _is_belay(obj) and _is_copy(obj, inventory) and f"{obj['kind']}/{obj['metadata']['name']}" not in ignored:
            found[_path(obj)] = _body(obj)
    return found


def foreign_documents(objects: Collection[Mapping[str, Any]]) -> dict[str, bytes]:
    """Documents that did not come from Git, of the kinds that may count, by origin."""
    inventory, _ = _sync_report(objects)
    found = {}
    for obj in objects:
        if not (_is_belay(obj) and obj["kind"] in CLUSTER_KINDS) or _is_copy(obj, inventory):
            continue
        if not obj["metadata"].get("deletionTimestamp"):
            found[f"{CLUSTER}{obj['kind']}/{obj['metadata']['name']}"] = _body(obj)
    return dict(sorted(found.items()))


def has_engine(objects: Objects) -> bool:
    """Whether an engine has written ``belay-sync`` here, so that its rules apply to these objects."""
    return any(_is_sync(obj) for obj in objects)


def belay_objects(observed: Observed) -> list[Mapping[str, Any]]:
    """The objects of a snapshot that the functions above read."""
    return [raw for key, raw in observed.objects.items() if key.api_version == API_VERSION or key == _SYNC]


def kind_of(path: str) -> str:
    """The kind in the path of a foreign document."""
    return path.removeprefix(CLUSTER).partition("/")[0]


def _sync_report(objects: Objects) -> tuple[frozenset[ObjectKey] | None, frozenset[str]]:
    """The inventory in ``belay-sync`` (None: no readable one), and copies that it lists as ignored."""
    for obj in objects:
        if _is_sync(obj):
            try:
                inventory = sync.parse_inventory(obj)
            except sync.WireError:
                inventory = None
            return None if inventory is None else frozenset(inventory), sync.parse_ignored(obj)
    return None, frozenset()


def _is_sync(obj: Mapping[str, Any]) -> bool:
    if obj.get("kind") != "ConfigMap":
        return False
    metadata = obj.get("metadata") or {}
    return metadata.get("name") == names.SYNC and metadata.get("namespace") == names.SYSTEM


def _is_belay(obj: Mapping[str, Any]) -> bool:
    return str(obj.get("apiVersion", "")).startswith(BELAY_PREFIX)


def _is_copy(obj: Mapping[str, Any], inventory: Collection[ObjectKey] | None) -> bool:
    metadata = obj["metadata"]
    if inventory is not None:
        return ObjectKey(API_VERSION, str(obj["kind"]), "", str(metadata["name"])) in inventory
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return labels.get(MANAGED_BY) == "belay" and APPLIED_DIGEST in notes


def _path(obj: Mapping[str, Any]) -> str:
    kind, name = str(obj["kind"]), str(obj["metadata"]["name"])
    return f"policies/cluster/{quote(kind.lower(), '')}-{quote(name, '')}.yaml"


def _body(obj: Mapping[str, Any]) -> bytes:
    """The part of an object that people write: without status and metadata of servers."""
    body = {"apiVersion": obj["apiVersion"], "kind": str(obj["kind"]), "metadata": {"name": obj["metadata"]["name"]}}
    if "spec" in obj:
        body["spec"] = obj["spec"]
    return json.dumps(body).encode()


def places_of(desired: Desired, before: Mapping[str, Place] = MappingProxyType({})) -> dict[str, Place]:
    """Where documents from Git stand, by ``Kind/name``; those first that hold chips and nodes, manifests last.

    ``before`` are the places of an earlier revision: those of documents that are not declared any more stay for a
    while, since what they held or made may go only later. Of a manifest only its place is said, and where the commit
    that changed it says why, this too.
    """
    own = {
        f"{item.document.kind}/{item.document.name}": desired.place_of(item.origin)
        for group in _groups(desired)
        for item in group
    }
    manifests = {subject_of(item.key): _place_of_manifest(desired.place_of(item.origin)) for item in desired.manifests}
    former = [name for name in before if name not in own and name not in manifests][:MAX_FORMER]
    from_git = {name: place for name, place in own.items() if place.commit}
    return from_git | {name: before[name] for name in former} | manifests


def _place_of_manifest(place: Place) -> Place:
    """Manifests are many, so who changed them is kept only where there is more to say than that."""
    return place if place.why else Place(place.file, place.line)


def subject_of(key: ObjectKey) -> str:
    """``Kind/namespace/name``, or ``Kind/name``, as causes and places name an object."""
    return "/".join(part for part in (key.kind, key.namespace, key.name) if part)


def with_places(desired: Desired, objects: Objects) -> Desired:
    """The same intent, read from copies in the cluster, with the places in Git that ``belay-sync`` gives for them."""
    status = next((obj for obj in objects if _is_sync(obj)), None)
    places = sync.parse_places(status) if status is not None else {}
    if not places:
        return desired

    moved: dict[str, Any] = {}
    changes: dict[str, LastChange] = {}
    for field in _FIELDS:
        group = getattr(desired, field)
        if isinstance(group, tuple):
            moved[field] = tuple(_moved(item, places, changes) for item in group)
        else:
            moved[field] = {name: _moved(item, places, changes) for name, item in group.items()}
    return replace(desired, last_changes=changes, **moved)


def _groups(desired: Desired) -> Iterator[Iterable[Declared[Any]]]:
    for field in _FIELDS:
        group = getattr(desired, field)
        yield group if isinstance(group, tuple) else group.values()


def _moved(item: Declared[Any], places: Mapping[str, Place], changes: dict[str, LastChange]) -> Declared[Any]:
    """A document at its place in Git, whose last change is noted; as it is where the place is not known."""
    place = places.get(f"{item.document.kind}/{item.document.name}")
    if place is None or item.origin.file.startswith((SHIPPED, CLUSTER)):
        return item
    changes[place.file] = LastChange(place.commit, place.author, place.why)
    return Declared(item.document, Origin(place.file, place.line))

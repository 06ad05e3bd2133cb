"""`belay adopt`: running objects become documents of the repository, and nothing of them changes by it.

The document is the live object without what the API server, its controllers and Belay add. A field that the API server
would fill in with the same value is left out, so that the document says what a person decided.
"""

from __future__ import annotations

import copy
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from belay.engine.cli.acts import splices
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.jobs import JOB_KINDS
from belay.engine.cli.acts.placed_documents import FileText, PlacedDocument, documents
from belay.engine.errors import InputError
from belay.engine.model.labels import (
    BATCH_CONTROLLER_UID,
    BATCH_JOB_NAME,
    BELAY_PREFIX,
    JOB_NAME_LABEL,
    LAST_APPLIED,
    MANAGED_BY,
)
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.wire.reserved import SYSTEM_NAMESPACES
from belay.engine.workloads.defaults import set_defaults

Json = dict[str, Any]
_METADATA: Final = ("name", "namespace", "labels", "annotations")
_ADDED_ANNOTATIONS: Final = (
    BELAY_PREFIX, "control-plane.alpha.kubernetes.io/", "deployment.kubernetes.io/",
    LAST_APPLIED, "pv.kubernetes.io/", "volume.kubernetes.io/",
)  # fmt: skip
_ADDED_LABELS: Final = (
    BATCH_CONTROLLER_UID,
    BATCH_JOB_NAME,
    "controller-uid",
    JOB_NAME_LABEL,
)
_ALLOCATED: Final[Mapping[str, Sequence[str]]] = {
    "Service": ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort"),
    "PersistentVolumeClaim": ("volumeName",),
    "Job": ("selector", "manualSelector"),
}
"""Fields of ``spec`` that a server or controller decides; a headless Service keeps its ``clusterIP: None``."""


def adopt(
    files: Mapping[str, bytes], items: Sequence[Mapping[str, Any]], names: Sequence[str], kubeconfig: str | None = None
) -> RepositoryEdit:
    """Declare live objects as they are.

    Args:
        files: the documents of the repository, by path.
        items: the objects of the cluster.
        names: ``NAMESPACE/KIND/NAME`` or ``KIND/NAMESPACE/NAME`` each; ``KIND/NAME`` in namespace default, or of a
            kind without namespaces.
        kubeconfig: where a person named the cluster, for the way back.

    Raises:
        InputError: no such object, it belongs to another or to the system, or the repository declares it already.
    """
    declared = list(documents(files))
    changed = dict(files)
    undo: list[str] = []
    for name in names:
        live = _found(items, name)
        _check_free(live, name, declared)
        file = _file(live, declared)
        text = FileText.of(changed, file).edited(splices.with_document, as_text(document_of(live)))
        changed[file] = text.data
        undo.append(_undo(live, kubeconfig))
    done = {path: data for path, data in changed.items() if data != files.get(path)}
    return RepositoryEdit(done, f"Adopt {', '.join(names)}", tuple(undo), revert=True)


def document_of(live: Mapping[str, Any]) -> Json:
    """What a person would declare to get this object."""
    found: Json = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": _metadata(live)}
    found |= {key: copy.deepcopy(value) for key, value in live.items() if key not in (*found, "status")}
    for field in _ALLOCATED.get(found["kind"], ()):
        if nested_map(found, "spec").get(field) != "None":
            nested_map(found, "spec").pop(field, None)
    if found["kind"] == "Job":
        labels = nested_map(found, "spec", "template", "metadata", "labels")
        for label in _ADDED_LABELS:
            labels.pop(label, None)
    _drop_creation_times(found)
    return _without_defaults(found)


def as_text(document: Json) -> str:
    """The document as people write YAML: texts of several lines as blocks, keys in their order."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            """What stands twice is written twice."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _found(items: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise InputError(
            "this names no object", where=name, hint="Write NAMESPACE/KIND/NAME, as default/Deployment/chat"
        )
    wanted = {(parts[1].lower(), parts[0], parts[2]), (parts[0].lower(), parts[1], parts[2])} if len(parts) == 3 else {
        (parts[0].lower(), "default", parts[1]), (parts[0].lower(), "", parts[1])}  # fmt: skip
    wanted |= {(kind.removesuffix("s"), namespace, one) for kind, namespace, one in wanted}
    found = [item for item in items if _identity(item) in wanted]
    if not found:
        raise InputError("the cluster has no such object, or Belay does not read its kind", where=name,
                         hint="Write NAMESPACE/KIND/NAME, as default/Deployment/chat")  # fmt: skip
    if len({str(item.get("apiVersion")).partition("/")[0] for item in found}) > 1:
        groups = ", ".join(sorted(str(item.get("apiVersion")) for item in found))
        raise InputError(f"several objects have this name ({groups})", where=name)
    return found[0]


def _identity(item: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = nested_map(item, "metadata")
    return str(item.get("kind")).lower(), str(metadata.get("namespace") or ""), str(metadata.get("name"))


def _check_free(live: Mapping[str, Any], name: str, declared: Sequence[PlacedDocument]) -> None:
    """Raises InputError where the object is not for a person to declare."""
    metadata, kind = nested_map(live, "metadata"), str(live["kind"])
    for owner in nested_list(metadata, "ownerReferences"):
        if isinstance(owner, dict) and owner.get("controller"):
            place = f"{metadata.get('namespace') or 'default'}/{owner.get('kind')}/{owner.get('name')}"
            raise InputError(f"{owner.get('kind')} {owner.get('name')} made it, and would undo what Git says of it",
                             where=name, hint=f"belay adopt {place}")  # fmt: skip
    if metadata.get("namespace") in SYSTEM_NAMESPACES:
        raise InputError(f"namespace {metadata['namespace']} is the system's", where=name,
                         hint="Git declares objects of other namespaces")  # fmt: skip
    if metadata.get("deletionTimestamp"):
        raise InputError("it is being deleted", where=name)
    for one in declared:
        here = nested_map(one.body, "metadata")
        same = str(here.get("namespace") or "default") == str(metadata.get("namespace") or "default")
        if one.kind == kind and here.get("name") == metadata.get("name") and same:
            raise InputError("the repository declares it already", where=f"{one.file}: {kind}/{one.name}")


def _file(live: Mapping[str, Any], declared: Sequence[PlacedDocument]) -> str:
    """A file of its own, in the folder that holds most documents of this kind."""
    kind = str(live["kind"])
    folders = Counter(one.file.rpartition("/")[0] for one in declared if one.kind == kind and "/" in one.file)
    if kind in JOB_KINDS and not folders:
        folders = Counter(one.file.rpartition("/")[0] for one in declared if one.kind in JOB_KINDS and "/" in one.file)
    folder = folders.most_common(1)[0][0] if folders else "desired/jobs" if kind in JOB_KINDS else "desired/objects"
    name = str(live["metadata"]["name"])
    taken = {one.file for one in declared}
    plain, full = f"{folder}/{name}.yaml", f"{folder}/{kind.lower()}-{name}.yaml"
    return full if plain in taken else plain


def _undo(live: Mapping[str, Any], kubeconfig: str | None) -> str:
    """Keep the object when its document goes."""
    metadata = live["metadata"]
    cluster = f"--kubeconfig {shlex.quote(kubeconfig)} " if kubeconfig else ""
    place = f"-n {metadata['namespace']} " if metadata.get("namespace") else ""
    return f"kubectl {cluster}{place}annotate {str(live['kind']).lower()} {metadata['name']} belay.dev/prune=disabled"


def _metadata(live: Mapping[str, Any]) -> Json:
    metadata = nested_map(live, "metadata")
    found = {key: copy.deepcopy(metadata[key]) for key in _METADATA if metadata.get(key)}
    if "annotations" in found:
        kept = {key: text for key, text in found["annotations"].items() if not key.startswith(_ADDED_ANNOTATIONS)}
        found["annotations"] = kept
    labels = {
        key: text for key, text in nested_map(found, "labels").items()
        if key not in _ADDED_LABELS and (key, text) != (MANAGED_BY, "belay")
    }  # fmt: skip
    found["labels"] = labels
    return {key: value for key, value in found.items() if value}


def _drop_creation_times(value: Any) -> None:
    """Templates come back with ``creationTimestamp: null``."""
    if isinstance(value, dict):
        if value.get("creationTimestamp", "") is None:
            del value["creationTimestamp"]
        for one in value.values():
            _drop_creation_times(one)
    elif isinstance(value, list):
        for one in value:
            _drop_creation_times(one)


def _without_defaults(document: Json) -> Json:
    """The document without the fields that an API server would fill in as they are."""
    group, slash, _ = str(document["apiVersion"]).rpartition("/")
    storage = f"{str(document['kind']).lower()}s{f'.{group}' if slash else ''}"
    storage = storage.replace("classs", "classes")

    def filled(candidate: Json) -> Json:
        full = copy.deepcopy(candidate)
        set_defaults(storage, full)
        return full

    try:
        whole = filled(document)
        for path in list(_paths(document)):
            candidate = copy.deepcopy(document)
            if _remove(candidate, path) and filled(candidate) == whole:
                document = candidate
    except (AttributeError, KeyError, TypeError, ValueError):
        return document  # a manifest of a shape that defaults do not know stays as it is
    return document


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The fields below ``spec``, parents before children."""
    if isinstance(value, dict):
        for key, one in value.items():
            if path or key not in ("apiVersion", "kind", "metadata"):
                yield (*path, key)
                yield from _paths(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _paths(one, (*path, index))


def _remove(document: Any, path: Sequence[str | int]) -> bool:
    for part in path[:-1]:
        inside = isinstance(document, dict) and part in document
        listed = isinstance(document, list) and isinstance(part, int) and part < len(document)
        if not inside and not listed:
            return False
        document = document[part]
    if not isinstance(document, dict) or path[-1] not in document:
        return False
    del document[path[-1]]
    return True

"""A plan without a running engine: from folders and a cluster List, or from a live cluster read once.

What `belay plan`, `diff`, `explain` and `validate` stand on; the planning itself is the engine's own.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import yaml

from engine.documents import Desired, Roles
from engine.errors import InputError
from engine.load import Loaded, load, load_directory
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic
from engine.model.plan import Plan
from engine.model.times import parse_rfc3339
from engine.observe import observe
from engine.plan import plan

#: A cluster of 10,000 nodes and 20,000 pods prints about 200 MiB.
MAX_CLUSTER_BYTES: Final = 1024 * 1024 * 1024
_BELAY_GROUP: Final = "belay.dev/"
_BOOL: Final = "tag:yaml.org,2002:bool"
_SERVER_FIELDS: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")


class _ClusterLoader(yaml.CSafeLoader):
    """YAML as kubectl prints it: times stay text, only true and false are booleans."""


_ClusterLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:timestamp", _BOOL)]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_ClusterLoader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))  # type: ignore[no-untyped-call]


def read_cluster(path: str) -> list[dict[str, Any]]:
    """Objects of a ``kubectl get … -o json|yaml`` output: a List, several documents, or single objects.

    Raises:
        InputError: not readable, too big, neither JSON nor YAML, or no Kubernetes objects.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_CLUSTER_BYTES:
            raise InputError(f"{path}: is larger than {MAX_CLUSTER_BYTES >> 20} MiB")
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return objects_of(data, path)


def objects_of(data: bytes, name: str) -> list[dict[str, Any]]:
    """Objects in JSON or YAML text; Lists are flattened.

    Raises:
        InputError: as ``read_cluster``.
    """
    found: list[dict[str, Any]] = []
    for document in _documents(data, name):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise InputError(f"{name}: holds a {type(document).__name__}, expected Kubernetes objects or a List")
        items = document.get("items")
        if isinstance(items, list):
            for index, item in enumerate(items):
                found.append(_object(item, f"{name}: items[{index}]", document))
        else:
            found.append(_object(document, name, {}))
    return found


def desired_from(
    tree: str | None, overlays: Sequence[str], cluster: Sequence[Mapping[str, Any]]
) -> tuple[Desired, tuple[Diagnostic, ...]]:
    """What is declared: the tree, or what the cluster itself records; shipped policies beneath, overlays on top.

    Raises:
        InputError: a folder does not exist.
    """
    extra = [policies_of(folder) for folder in overlays]
    if tree is not None:
        loaded = load(tree_of(tree), overlays=extra)
        return loaded.desired, loaded.diagnostics
    loaded = load(recorded(cluster), overlays=extra, has_git=False)
    return loaded.desired, loaded.diagnostics


def load_tree(tree: str, overlays: Sequence[str] = ()) -> Loaded:
    """A repository folder, loaded and checked."""
    return load(tree_of(tree), overlays=[policies_of(folder) for folder in overlays])


def tree_of(folder: str) -> Mapping[str, bytes]:
    """Documents of a state repository, or of a folder that is its ``desired/`` itself.

    Raises:
        InputError: the folder does not exist.
    """
    root = _folder(folder)
    if (root / "desired").is_dir() or (root / "policies").is_dir():
        return load_directory(root)
    return {f"desired/{path}": data for path, data in _plain(root).items()}


def policies_of(folder: str) -> Mapping[str, bytes]:
    """Documents of a policies folder (or of a tree's ``policies/``).

    Raises:
        InputError: the folder does not exist.
    """
    root = _folder(folder)
    root = root / "policies" if (root / "policies").is_dir() else root
    return {f"policies/{path}": data for path, data in _plain(root).items()}


def recorded(cluster: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """The Belay documents that the cluster itself holds, as files that ``load`` reads."""
    files: dict[str, bytes] = {}
    for obj in cluster:
        if not str(obj.get("apiVersion", "")).startswith(_BELAY_GROUP):
            continue
        metadata = {k: v for k, v in (obj.get("metadata") or {}).items() if k not in _SERVER_FIELDS}
        metadata.pop("namespace", None)
        metadata.pop("annotations", None)
        body = {"apiVersion": obj["apiVersion"], "kind": obj.get("kind"), "metadata": metadata, "spec": obj.get("spec")}
        files[f"policies/cluster-{str(obj.get('kind')).lower()}-{metadata.get('name')}.yaml"] = json.dumps(
            body
        ).encode()
    return files


def plan_offline(
    cluster: Sequence[Mapping[str, Any]],
    *,
    tree: str | None = None,
    overlays: Sequence[str] = (),
    now: str | None = None,
    clock: float | None = None,
    live: bool = False,
) -> tuple[Plan, Observed, Desired]:
    """One pass over a List.

    Args:
        live: the objects were just read from a cluster; else Belay plays every role, whoever runs in the List.
        now: RFC 3339; without it the newest report time in the List, else ``clock``.

    Raises:
        InputError: a folder or the time is not usable.
    """
    observed = observe(cluster)
    desired, found = desired_from(tree, overlays, cluster)
    if not live:
        desired = every_role(desired)
    result = plan(desired, observed, moment(now, observed, clock))
    diagnostics = tuple(sorted({*result.diagnostics, *found}))
    return msgspec.structs.replace(result, diagnostics=diagnostics), observed, desired


def every_role(desired: Desired) -> Desired:
    """The same intent with every role taken, as a plan without a cluster has it."""
    roles = Roles.model_validate(dict.fromkeys(Roles.model_fields, "on"), by_name=True)
    taken = []
    for one in desired.scheduling:
        spec = one.document.spec.model_copy(update={"roles": roles})
        taken.append(dataclasses.replace(one, document=one.document.model_copy(update={"spec": spec})))
    return dataclasses.replace(desired, scheduling=tuple(taken))


def moment(now: str | None, observed: Observed, clock: float | None) -> float:
    """The time of a plan.

    Raises:
        InputError: not RFC 3339.
    """
    if now is not None:
        try:
            return parse_rfc3339(now)
        except ValueError as error:
            raise InputError(f"--now {now!r}: write it as 2026-09-01T08:00:00Z") from error
    return clock if clock is not None and not observed.newest_report else (observed.newest_report or 0.0)


def _documents(data: bytes, name: str) -> list[Any]:
    text = data.lstrip()
    if text[:1] in (b"{", b"["):
        try:
            return [orjson.loads(data)]
        except orjson.JSONDecodeError as error:
            if text[:1] == b"[":
                raise InputError(f"{name}:{error.lineno}:{error.colno}: is not valid JSON: {error.msg}") from error
            json_error = error
    else:
        json_error = None
    try:
        return list(yaml.load_all(data, Loader=_ClusterLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        if json_error is not None:
            place = f"{name}:{json_error.lineno}:{json_error.colno}"
            raise InputError(f"{place}: is not valid JSON: {json_error.msg}") from error
        raise InputError(f"{place}: is not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError) as error:
        raise InputError(f"{name}: is not valid YAML: {str(error)[:200]}") from error


def _object(item: Any, where: str, parent: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InputError(f"{where}: is a {type(item).__name__}, expected a Kubernetes object")
    if "kind" not in item and str(parent.get("kind", "")).endswith("List") and parent.get("kind") != "List":
        item = {"apiVersion": parent.get("apiVersion"), "kind": str(parent["kind"]).removesuffix("List"), **item}
    metadata = item.get("metadata")
    if not item.get("apiVersion") or not item.get("kind"):
        raise InputError(f"{where}: has no apiVersion and kind, expected a Kubernetes object")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise InputError(f"{where}: a {item['kind']} without metadata.name")
    return item


def _folder(folder: str) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{folder}: is not a folder")
    return root


def _plain(root: Path) -> Mapping[str, bytes]:
    """Every YAML or JSON file below a folder, by its path inside it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix in (".yaml", ".yml", ".json") and ".git" not in path.parts
    }

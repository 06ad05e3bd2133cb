"""A plan without a running engine: from folders and a cluster List, or from a live cluster read once.

What `belay plan`, `diff`, `explain` and `validate` stand on; the planning itself is the engine's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import orjson
import yaml

from engine.documents import Desired, Roles
from engine.errors import InputError
from engine.load import Loaded, load, load_directory
from engine.load.files import ROOMS
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic
from engine.model.plan import Plan
from engine.model.times import parse_rfc3339
from engine.observe import observe
from engine.plan import plan

#: A cluster of 10,000 nodes and 20,000 pods prints about 200 MiB.
MAX_CLUSTER_BYTES: Final = 1024 * 1024 * 1024
_BELAY_GROUP: Final = "belay.dev/"
_LATEST: Final = 253370764800.0
"""9999-01-01: later times could not be written."""
_BOOL: Final = "tag:yaml.org,2002:bool"
STDIN: Final = "-"
_FLOW_BYTES: Final = 1024 * 1024
_SPACE: Final = re.compile(r"\s*")
_ALIAS: Final = re.compile(rb"(?:^|[\s\[{,:-])\*[^\s*]", re.MULTILINE)
_BOM: Final = b"\xef\xbb\xbf"
_EXPECTED: Final = "Give what `kubectl get nodes,pods,configmaps -A -o json` (or yaml) prints."
_WORDS: Final = {str: "a text", list: "a list", int: "a number", float: "a number", bool: "true or false"}


class _ClusterLoader(yaml.CSafeLoader):
    """YAML as kubectl prints it: times stay text, only true and false are booleans."""


_ClusterLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:timestamp", _BOOL)]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_ClusterLoader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_cluster(path: str) -> list[dict[str, Any]]:
    """Objects of a ``kubectl get … -o json|yaml`` output: a List, several documents, or single objects; ``-`` is the
    standard input.

    Raises:
        InputError: not readable, too big, neither JSON nor YAML, or no Kubernetes objects.
    """
    try:
        with sys.stdin.buffer if path == STDIN else Path(path).open("rb") as stream:
            data = stream.read(MAX_CLUSTER_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except ValueError as error:
        raise InputError(f"{path!r} is no file name: {error}") from error
    if len(data) > MAX_CLUSTER_BYTES:
        raise InputError(f"is larger than {MAX_CLUSTER_BYTES >> 20} MiB", where=path)
    return objects_of(data, "standard input" if path == STDIN else path)


def objects_of(data: bytes, name: str) -> list[dict[str, Any]]:
    """Objects in JSON or YAML text; Lists are flattened.

    Raises:
        InputError: as ``read_cluster``.
    """
    found: list[dict[str, Any]] = []
    documents = [document for document in _documents(data.removeprefix(_BOM), name) if document is not None]
    if not documents:
        raise InputError("is empty", where=name, hint=_EXPECTED)
    for document in documents:
        if not isinstance(document, dict):
            raise InputError(f"holds {_WORDS.get(type(document), 'a value')}", where=name, hint=_EXPECTED)
        if str(document.get("kind", "")).endswith("List") and "items" in document:
            items = document["items"] or []
            if not isinstance(items, list):
                raise InputError("is no list", where=f"{name}: items", hint=_EXPECTED)
            found += [_object(item, f"{name}: items[{index}]", document) for index, item in enumerate(items)]
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
    files = load_directory(root)
    bare = root.resolve().name == "desired" and not any((root / room).is_dir() for room in ROOMS)
    return {f"desired/{path}": data for path, data in files.items()} if bare else files


def policies_of(folder: str) -> Mapping[str, bytes]:
    """Documents of a policies folder (or of a tree's ``policies/``).

    Raises:
        InputError: the folder does not exist.
    """
    root = _folder(folder)
    root = root / "policies" if (root / "policies").is_dir() else root
    return {f"policies/{path}": data for path, data in load_directory(root).items()}


def recorded(cluster: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """The Belay documents that the cluster itself holds, as files that ``load`` reads.

    Only what a person writes of an object is taken: not its status, nor what servers and appliers note on it.
    """
    files: dict[str, bytes] = {}
    for obj in cluster:
        if not str(obj.get("apiVersion", "")).startswith(_BELAY_GROUP):
            continue
        kind, name = str(obj.get("kind")), str(obj["metadata"]["name"])
        body = {"apiVersion": obj["apiVersion"], "kind": kind, "metadata": {"name": name}}
        if "spec" in obj:
            body["spec"] = obj["spec"]
        files[f"policies/cluster/{quote(kind.lower(), '')}-{quote(name, '')}.yaml"] = json.dumps(body).encode()
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
            given = parse_rfc3339(now)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{now!r} is no time", where="--now", hint="Write 2026-09-01T08:00:00Z.") from error
        if not 0 <= given < _LATEST:
            raise InputError(f"{now!r} is out of range", where="--now", hint="Give a time from 1970 to 9998.")
        return given
    return clock if clock is not None and not observed.newest_report else (observed.newest_report or 0.0)


def _documents(data: bytes, name: str) -> list[Any]:
    if data.lstrip()[:1] not in (b"{", b"["):
        return _yaml(data, name)
    try:
        return [orjson.loads(data)]
    except orjson.JSONDecodeError as error:
        found = _several(data)
        if found:
            return found
        if len(data) <= _FLOW_BYTES:  # YAML may be written in braces too
            with contextlib.suppress(InputError):
                return _yaml(data, name)
        where = f"{name}:{error.lineno}:{error.colno}"
        raise InputError(f"is not valid JSON: {error.msg}", where=where, hint="Is the file complete?") from error


def _several(data: bytes) -> list[Any]:
    """JSON documents one after another, as several calls of kubectl append them; empty when they are not."""
    decoder, found, at = json.JSONDecoder(), [], 0
    try:
        text = data.decode()
        while at < len(text):
            document, end = decoder.raw_decode(text, at)
            found.append(document)
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return []
    return found


def _yaml(data: bytes, name: str) -> list[Any]:
    try:
        if _ALIAS.search(data) and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(data, yaml.CSafeLoader)):
            raise InputError("uses YAML aliases, which kubectl never prints", where=name, hint=_EXPECTED)
        return list(yaml.load_all(data, Loader=_ClusterLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        raise InputError(f"is not valid YAML: {error.problem}", where=place) from error
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError, TypeError) as error:
        raise InputError(f"is not valid YAML: {' '.join(str(error).split())[:200]}", where=name) from error


def _object(item: Any, where: str, parent: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InputError(f"is {_WORDS.get(type(item), 'nothing')}, no Kubernetes object", where=where)
    found: dict[str, Any] = item
    if "kind" not in item and parent.get("kind") != "List":
        kind = str(parent.get("kind", "")).removesuffix("List")
        found = {"apiVersion": parent.get("apiVersion"), "kind": kind, **item}
    metadata = found.get("metadata")
    for field in ("apiVersion", "kind"):
        if not isinstance(found.get(field), str) or not found[field]:
            raise InputError(f"has no {field}, so it is no Kubernetes object", where=where, hint=_EXPECTED)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError(f"a {found['kind']} without metadata.name", where=where)
    if not isinstance(metadata.get("namespace") or "", str):
        raise InputError("is no text", where=f"{where}: metadata.namespace")
    return found


def _folder(folder: str) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise InputError("is no folder" if root.exists() else "does not exist", where=folder)
    return root

"""Objects in a file that `kubectl get … -o json|yaml` printed, or that a person wrote.

The file is untrusted: it may be cut, huge, deeply nested, or contain no Kubernetes objects. Each error names its
place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from belay.engine.errors import InputError, bounded
from belay.engine.wire import yamltext

#: A cluster of 10,000 nodes and 20,000 pods prints about 200 MiB.
MAX_CLUSTER_BYTES: Final = 1024 * 1024 * 1024
_BOOL: Final = "tag:yaml.org,2002:bool"
STDIN: Final = "-"
_NOTHING: Final[Mapping[str, Any]] = {}
_TEXTS: Final = ("labels", "annotations")
_FLOW_BYTES: Final = 1024 * 1024
_SPACE: Final = re.compile(r"\s*")
_DEPTH: Final = 250
_EXPANDED: Final = 50_000_000
_BOM: Final = b"\xef\xbb\xbf"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_EXPECTED: Final = "Give what `kubectl get nodes,pods,configmaps,acjob,deployments -A -o json` (or yaml) prints."
_DEFINITION: Final = "CustomResourceDefinition"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_MOST_FILES: Final = 2_000
_WORDS: Final = {
    str: "a text", list: "a list", dict: "a mapping", int: "a number", float: "a number", bool: "true or false",
}  # fmt: skip


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
    if not path:
        raise InputError("the name of the file is empty", where="--cluster", hint=_EXPECTED)
    try:
        with sys.stdin.buffer if path == STDIN else Path(path).open("rb") as stream:
            huge = path != STDIN and os.fstat(stream.fileno()).st_size > MAX_CLUSTER_BYTES
            data = b"" if huge else stream.read(MAX_CLUSTER_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except ValueError as error:
        raise InputError(f"{path!r} is not a file name: {error}") from error
    if huge or len(data) > MAX_CLUSTER_BYTES:
        raise InputError(f"is larger than {MAX_CLUSTER_BYTES >> 20} MiB", where=path)
    return objects_of(data, "standard input" if path == STDIN else path)


def read_definitions(path: str) -> list[dict[str, Any]]:
    """The CustomResourceDefinitions in a file, or in all YAML and JSON files below a folder; what else is there is left
    out.

    Raises:
        InputError: a file that names one cannot be read, there are too many files, or there is no definition at all.
    """
    files = [path]
    if os.path.isdir(path):
        below = sorted(file for file in Path(path).rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        files = [str(file) for file in below if _DEFINITION.encode() in file.read_bytes()]
        if len(below) > _MOST_FILES:
            raise InputError(f"holds more than {_MOST_FILES} files", where=path, hint="Name the folder of definitions.")

    found = [item for file in files for item in read_cluster(file) if item["kind"] == _DEFINITION]
    if not found:
        raise InputError(f"holds no {_DEFINITION}", where=path, hint="Name the file that defines the kind.")
    return found


def objects_of(data: bytes, name: str) -> list[dict[str, Any]]:
    """Objects in JSON or YAML text; Lists are flattened.

    Raises:
        InputError: as ``read_cluster``.
    """
    found: list[dict[str, Any]] = []
    try:
        documents = [document for document in _documents(data.removeprefix(_BOM), name) if document is not None]
    except InputError:
        if not data.startswith(_UTF16):
            _refuse_bytes(data, name)  # says it better
        raise
    if not documents:
        raise InputError("is empty", where=name, hint=_EXPECTED)
    for document in documents:
        if not isinstance(document, dict):
            raise InputError(f"holds {_word(document)}", where=name, hint=_EXPECTED)
        if str(document.get("kind", "")).endswith("List") and ("items" in document or "metadata" not in document):
            if "items" not in document:
                raise InputError("a List without items", where=name, hint=_EXPECTED)
            items = [] if document["items"] is None else document["items"]
            if not isinstance(items, list):
                raise InputError(f"is {_word(items)}, no list", where=f"{name}: items", hint=_EXPECTED)
            found += [checked(item, f"{name}: items[{index}]", document) for index, item in enumerate(items)]
        else:
            found.append(checked(document, name))
    return found


def _refuse_bytes(data: bytes, name: str) -> None:
    """Raises InputError where the text stops being UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        text = f"is not UTF-8: byte 0x{data[error.start]:02x}"
        raise InputError(text, where=f"{name}:{line}:{column}", hint=_EXPECTED) from error


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
            _, end = decoder.raw_decode(text, at)
            found.append(orjson.loads(text[at:end]))
            blank = _SPACE.match(text, end)
            at = blank.end() if blank is not None else end
    except (ValueError, RecursionError):
        return []
    return found


def _yaml(data: bytes, name: str) -> list[Any]:
    try:
        _refuse_strange(data, name)
        return [_as_json(document) for document in yaml.load_all(data, Loader=_ClusterLoader)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        raise InputError(f"is not valid YAML: {error.problem}", where=place) from error
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError, TypeError) as error:
        raise InputError(f"is not valid YAML: {' '.join(str(error).split())[:200]}", where=name) from error


def _refuse_strange(data: bytes, name: str) -> None:
    """Raise InputError for endless nesting and swollen aliases, before the C composer sees the text."""
    try:
        yamltext.check(data, _DEPTH, _EXPANDED)
    except UnicodeError:
        raise
    except ValueError as error:
        raise InputError(f"is not read: {error}", where=name, hint=_EXPECTED) from error


def _as_json(document: Any) -> Any:
    """YAML says more than JSON: keys that are no texts, sets, endless numbers. Raises TypeError for the rest."""
    return orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))


def checked(item: Any, where: str, parent: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """A Kubernetes object as an API server stores it; ``parent`` is the List it is from, which may name its kind.

    Raises:
        InputError: it is none.
    """
    if not isinstance(item, dict):
        raise InputError(f"is {_word(item)}, no Kubernetes object", where=where)
    found: dict[str, Any] = item
    if "kind" not in item and parent.get("kind", "List") != "List":
        kind = str(parent.get("kind", "")).removesuffix("List")
        found = {"apiVersion": parent.get("apiVersion"), "kind": kind, **item}
    metadata = found.get("metadata")
    for field in ("apiVersion", "kind"):
        if not isinstance(found.get(field), str) or not found[field]:
            raise InputError(f"has no {field}, so it is not a Kubernetes object", where=where, hint=_EXPECTED)
    _need(metadata, dict, "mapping", f"{where}: metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError(f"a {found['kind']} without metadata.name", where=where)
    for field in ("namespace", "uid", "resourceVersion"):
        _need(metadata.get(field), str, "text", f"{where}: metadata.{field}")
    for field in ("spec", "status"):
        _need(found.get(field), dict, "mapping", f"{where}: {field}")
    texts = {key: _texts(metadata[key], f"{where}: metadata.{key}") for key in _TEXTS if key in metadata}
    if texts != {key: metadata[key] for key in texts}:
        found = {**found, "metadata": {**metadata, **texts}}
    for field in ("ownerReferences", "finalizers", "managedFields"):
        _need(metadata.get(field), list, "list", f"{where}: metadata.{field}")
    return _config_map(found, where) if found["kind"] == "ConfigMap" and found["apiVersion"] == "v1" else found


def _config_map(found: dict[str, Any], where: str) -> dict[str, Any]:
    """The ConfigMap with texts as data, as an API server stores it."""
    name = found["metadata"]["name"]
    for field in ("data", "binaryData"):
        value = found.get(field)
        if value is None:
            continue
        if not isinstance(value, dict):
            text = f"is {_word(value)}, no mapping of keys to texts, in ConfigMap {bounded(name, 253)}"
            raise InputError(text, where=f"{where}: {field}", hint=_EXPECTED)
        texts = _texts(value, f"{where}: {field}")
        if texts != value:
            found = {**found, field: texts}
    return found


def _texts(value: Any, where: str) -> dict[str, str]:
    """Labels, annotations, or data. Kubernetes holds texts only; numbers in files written by hand are taken as such."""
    _need(value, dict, "mapping", where)
    found = {}
    for key, text in (value or {}).items():
        if isinstance(text, dict | list):
            raise InputError(f"is {_word(text)}, no text", where=f"{where}.{bounded(str(key), 120)}")
        if text is not None:
            found[str(key)] = text if isinstance(text, str) else json.dumps(text)
    return found


def _need(value: Any, kind: type, word: str, where: str) -> None:
    """Raises InputError unless the value is of this kind, or absent."""
    if value is not None and not isinstance(value, kind):
        raise InputError(f"is {_word(value)}, no {word}", where=where)


def _word(value: Any) -> str:
    return _WORDS.get(type(value), "nothing")

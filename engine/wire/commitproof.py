"""``belay-commit``: the signed commit in force, with what proves that its documents belong to it.

Git names every object by the digest of its content, and a commit's signature covers the name of its tree. So the
commit, the trees on the way to a file and the file itself prove that a document is part of what a person signed,
whatever wrote the ConfigMap. Formats: git's gitformat-* and git-cat-file(1) documentation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from belay.engine.model.labels import ABOUT_LABEL, BELAY_PREFIX, MANAGED_BY
from belay.engine.wire import names, yamltext
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object

PROOF: Final = "proof.json"
MAX_BYTES: Final = 600 * 1024
"""Largest content of all objects together, in bytes; as base64 it fits a ConfigMap."""
MAX_BLOB: Final = 256 << 10
MAX_FILES: Final = 1000
MAX_BETWEEN: Final = 64
"""Most commits between the one in force and the one before it."""
_MAX_FOLDERS: Final = 32
_PATH: Final = re.compile(r"(desired|policies)/.+\.(yaml|yml|json)\Z", re.IGNORECASE)
_NAME: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
_TREE: Final = b"40000"
_FILES: Final = (b"100644", b"100755")
ENTITLING: Final = re.compile(rb"\bkind[\"']?\s*:\s*[\"']?(Product|VNPULayout)\b")
"""A file that may hold documents which entitle to resets and partitions."""


class GitObject(msgspec.Struct, frozen=True):
    """An object of Git: ``kind`` is commit, tree or blob, ``content`` base64."""

    kind: str
    content: str

    def read(self) -> bytes:
        """The content. Raises ValueError when it is not base64."""
        try:
            return base64.b64decode(self.content, validate=True)
        except binascii.Error as error:
            raise ValueError("holds an object that is not base64") from error


class CommitProof(msgspec.Struct, frozen=True, kw_only=True):
    """A commit (``revision``) and objects by name. ``files`` are paths in the repository of files that entitle,
    ``folder`` the folder that holds desired/ and policies/, ``left_out`` how many files did not fit; ``objects`` also
    hold the commits between this one and the one in force before it.
    """

    revision: str
    folder: str = ""
    files: tuple[str, ...] = ()
    left_out: int = 0
    objects: dict[str, GitObject] = {}

    def content(self, name: str, kind: str) -> bytes:
        """An object's content, checked against its name. Raises ValueError."""
        found = self.objects.get(name)
        if found is None or found.kind != kind:
            raise ValueError(f"lacks the {kind} {name[:12]}")
        content = found.read()
        if object_name(kind, content, len(name)) != name:
            raise ValueError(f"holds another {kind} than {name[:12]}")
        return content

    def commit(self) -> bytes:
        """The commit object. Raises ValueError."""
        return self.content(self.revision, "commit")

    def rules(self) -> frozenset[str]:
        """The rules of the documents that are proven to be part of the commit, as warrants name them.

        Raises:
            ValueError: an object is missing or is not the one that the commit names, or a path is not of desired state.
        """
        root = _header(self.commit(), b"tree")
        found: set[str] = set()
        prefix = f"{self.folder}/" if self.folder else ""
        for path in self.files[:MAX_FILES]:
            if not path.startswith(prefix) or not _PATH.match(path.removeprefix(prefix)):
                raise ValueError(
                    f"names {path[:80]!r}, which is not a document below {prefix}desired/ or {prefix}policies/"
                )
            found.update(_rules(self._file(root, path)))
        return frozenset(found)

    def follows(self, older: str) -> bool:
        """Whether the commit has ``older`` among its ancestors, as far as the commits between are held."""
        waiting, seen = [self.revision], set[str]()
        while waiting and len(seen) <= MAX_BETWEEN:
            name = waiting.pop()
            if name == older:
                return True
            if name in seen or name not in self.objects:
                continue
            seen.add(name)
            try:
                waiting += _headers(self.content(name, "commit"), b"parent")
            except ValueError:
                continue
        return False

    def _file(self, root: str, path: str) -> bytes:
        *folders, last = path.split("/")
        if len(folders) > _MAX_FOLDERS:
            raise ValueError(f"names {path[:80]!r}, which is too deep")
        tree = root
        for folder in folders:
            tree = self._entry(tree, folder, (_TREE,), path)
        return self.content(self._entry(tree, last, _FILES, path), "blob")

    def _entry(self, tree: str, name: str, modes: tuple[bytes, ...], path: str) -> str:
        for mode, entry, target in entries(self.content(tree, "tree"), len(tree)):
            if entry == name.encode() and mode in modes:
                return target
        raise ValueError(f"names {path[:80]!r}, which is not in the commit")


def object_name(kind: str, content: bytes, length: int = 40) -> str:
    """The name that Git gives an object: SHA-1, or SHA-256 where names have 64 digits."""
    whole = f"{kind} {len(content)}\0".encode() + content
    return (hashlib.sha256(whole) if length == 64 else hashlib.sha1(whole, usedforsecurity=False)).hexdigest()


def entries(tree: bytes, length: int = 40) -> Iterator[tuple[bytes, bytes, str]]:
    """Mode, name and object of each entry of a tree. Raises ValueError for one that is cut."""
    at, size = 0, length // 2
    while at < len(tree):
        end = tree.find(b"\0", at)
        mode, space, name = tree[at:end].partition(b" ")
        target = tree[end + 1 : end + 1 + size]
        if end < 0 or not space or len(target) != size:
            raise ValueError("holds a tree that cannot be read")
        yield mode, name, target.hex()
        at = end + 1 + size


def parse(config_map: Mapping[str, Any]) -> CommitProof:
    """Read a proof; nothing in it is believed yet. Raises WireError."""
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    data = config_map.get("data")
    value = read_object(where, f"data.{PROOF}", data.get(PROOF) if isinstance(data, Mapping) else None)
    try:
        proof = msgspec.convert(value, CommitProof)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{PROOF}", str(error)) from error
    if not _NAME.match(proof.revision):
        raise WireError(where, f"data.{PROOF}.revision", "is not the full name of a commit")
    return proof


def build(proof: CommitProof, shard: str) -> dict[str, Any]:
    """The ConfigMap of a proof."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.commit_config_map(shard),
            "namespace": names.SYSTEM,
            "labels": {ABOUT_LABEL: "commit", MANAGED_BY: "belay"},
        },
        "data": {PROOF: msgspec.json.encode(proof, order="deterministic").decode()},
    }


def git_object(kind: str, content: bytes) -> GitObject:
    """An object as a proof holds it."""
    return GitObject(kind, base64.b64encode(content).decode())


def _rules(text: bytes) -> Iterator[str]:
    try:
        documents = yamltext.load_all(text.decode(), yaml.CBaseLoader) if len(text) <= MAX_BLOB else []
    except ValueError:
        return  # what the engine cannot read either entitles to nothing
    for document in documents:
        rows = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        for row in rows if isinstance(rows, list) else []:
            yield from rules_of(row)


def rules_of(document: object) -> Iterator[str]:
    """The rules of resets and partitions that a document entitles to."""
    if not isinstance(document, dict) or not str(document.get("apiVersion", "")).startswith(BELAY_PREFIX):
        return
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if isinstance(name, str) and name:
        match document.get("kind"):
            case "Product":
                yield f"Product/{name}#reset"
            case "VNPULayout":
                yield f"VNPULayout/{name}"


def _header(commit: bytes, name: bytes) -> str:
    found = _headers(commit, name)
    if len(found) != 1:
        raise ValueError(f"holds a commit with {len(found)} {name.decode()} headers")
    return found[0]


def _headers(commit: bytes, name: bytes) -> list[str]:
    head = commit.partition(b"\n\n")[0].split(b"\n")
    values = [
        line.removeprefix(name + b" ").decode("ascii", "replace") for line in head if line.startswith(name + b" ")
    ]
    if any(not _NAME.match(value) for value in values):
        raise ValueError(f"holds a commit with a malformed {name.decode()} header")
    return values


__all__ = [
    "ENTITLING",
    "CommitProof",
    "GitObject",
    "build",
    "entries",
    "git_object",
    "object_name",
    "parse",
    "rules_of",
]

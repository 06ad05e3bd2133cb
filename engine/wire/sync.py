"""``belay-sync``: the attempted and the applied revision, conditions, diagnostics, inventory, file versions.

The inventory lists the objects applied from Git, grouped to stay small:
``{"apiVersion|Kind": {"namespace": ["name", …]}}``; pruning compares with it. File versions are Git blob ids of earlier
contents: the last valid ones, and those that stay in force while files are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.last_changes import Place
from belay.engine.wire import formats
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYNC

__all__ = [
    "APPLIED",
    "ATTEMPTED",
    "CONDITIONS",
    "DEFERRED",
    "DIAGNOSTICS",
    "HELD_PRUNE",
    "IGNORED",
    "INFO",
    "INVENTORY",
    "OBJECTS",
    "PART",
    "PLACES",
    "PRUNE_BASE",
    "READY",
    "READY_MESSAGE",
    "READY_REASON",
    "REFUSALS",
    "SHADOW",
    "SHARD",
    "RetainedFiles",
    "ShardPart",
    "FileVersions",
    "WireError",
    "inventory_text",
    "parse_ignored",
    "parse_part",
    "parse_inventory",
    "parse_places",
    "parse_file_versions",
    "prune_base",
    "file_versions_data",
]

PART: Final = "sync-part"
"""Value of the label ``belay.dev/about`` on ``belay-sync.<shard>``."""
SHARD: Final = "shard"
ATTEMPTED = "attemptedRevision"
APPLIED = "appliedRevision"
INVENTORY = "inventory.json"
IGNORED = "ignored.json"
REFUSALS = "refusals.json"
"""What the API server refuses, with its answers."""
CONDITIONS = "conditions.json"
DIAGNOSTICS = "diagnostics.json"
DEFERRED = "deferred.json"
SHADOW = "shadow.json"
OBJECTS = "objects.json"
"""How many declared objects are in force, waiting, held back, refused."""
READY, READY_REASON, READY_MESSAGE = "ready", "readyReason", "readyMessage"
"""The condition Ready as plain keys."""
PRUNE_BASE = "pruneBase"
"""The revision after which a commit may confirm the pending deletion; absent without one."""
HELD_PRUNE = "heldPrune.json"
"""The deletion that waits for confirmation, with its digest and a bounded list."""
INFO = "info"
"""Severity of a condition that follows from a setting and is no trouble."""
PLACES = "places.json"
"""Where in Git the documents in force stand, and who changed them last."""
LAST_GOOD = "lastGood.json"
REFUSED = "refused.json"
MAX_REFUSED_BYTES: Final = 200 * 1024
"""Largest list of rejected files in bytes; a larger one is dropped and marked incomplete."""

_Row = TypeVar("_Row")


class RetainedFiles(msgspec.Struct, frozen=True):
    """Versions (path, blob id) whose documents stay in force ``until`` all of these files are valid."""

    until: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]


class FileVersions(msgspec.Struct, frozen=True):
    """Earlier versions of files. ``good``: blob ids of the last valid versions by path, newest first; ``refused``: blob
    ids of files with an invalid document; ``kept``: versions that stay in force because of those.
    ``complete`` is False if the list was too large or is missing.
    """

    good: Mapping[str, tuple[str, ...]] = {}
    refused: Mapping[str, str] = {}
    kept: tuple[RetainedFiles, ...] = ()
    complete: bool = True

    @property
    def blobs(self) -> frozenset[str]:
        """Blobs whose content may still be needed; ids that begin with ``!`` have no content."""
        named = {blob for blobs in self.good.values() for blob in blobs}
        named.update(blob for one in self.kept for _, blob in one.versions)
        named.update(self.refused.values())
        return frozenset(blob for blob in named if not blob.startswith("!"))


class ShardPart(msgspec.Struct, frozen=True):
    """What ``belay-sync.<shard>`` says: the shard's revision in force, its conditions and findings, and rows of what is
    held back, refused and only in shadow, as they are published.
    """

    applied: str = ""
    conditions: tuple[dict[str, str], ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    deferred: tuple[dict[str, Any], ...] = ()
    refusals: tuple[dict[str, Any], ...] = ()
    shadows: tuple[dict[str, Any], ...] = ()


class _RefusedFiles(msgspec.Struct, frozen=True):
    refused: dict[str, str] = {}
    kept: tuple[RetainedFiles, ...] = ()
    complete: bool = True


def parse_file_versions(config_map: Mapping[str, Any]) -> FileVersions:
    """Parse the file versions; they are incomplete if invalid, or if missing beside an inventory."""
    data = config_map.get("data") or {}
    if not isinstance(data.get(LAST_GOOD), str):
        return FileVersions(complete=INVENTORY not in data)
    try:
        good = msgspec.json.decode(data[LAST_GOOD], type=dict[str, tuple[str, ...]])
        account = msgspec.json.decode(str(data.get(REFUSED) or "{}"), type=_RefusedFiles)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return FileVersions(complete=False)
    return FileVersions(
        {path: ids for path, ids in good.items() if ids}, account.refused, account.kept, account.complete
    )


def file_versions_data(remembered: FileVersions) -> dict[str, str]:
    """The file versions as keys of the ConfigMap."""
    refused = dict(sorted(remembered.refused.items()))
    account = msgspec.json.encode(_RefusedFiles(refused, remembered.kept, remembered.complete))
    if len(account) > MAX_REFUSED_BYTES:
        account = msgspec.json.encode(_RefusedFiles(complete=False))
    return {LAST_GOOD: msgspec.json.encode(dict(sorted(remembered.good.items()))).decode(), REFUSED: account.decode()}


def parse_inventory(config_map: Mapping[str, Any]) -> tuple[ObjectKey, ...] | None:
    """The recorded inventory; None if there is none.

    Raises:
        WireError: not valid; nothing is pruned until it is.
    """
    formats.check(config_map, SYNC)
    text = (config_map.get("data") or {}).get(INVENTORY)
    if text is None:
        return None
    try:
        groups = msgspec.json.decode(text, type=dict[str, dict[str, list[str]]])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(
            "ConfigMap/belay-system/belay-sync", f"data.{INVENTORY}", f"is not an inventory: {error}"
        ) from error
    keys = []
    for group, namespaces in groups.items():
        api_version, _, kind = group.partition("|")
        keys += [
            ObjectKey(api_version, kind, namespace, name) for namespace, names in namespaces.items() for name in names
        ]
    return tuple(sorted(keys))


def parse_ignored(config_map: Mapping[str, Any]) -> frozenset[str]:
    """Belay's documents in the cluster that are not in force, as ``Kind/name``; empty if invalid."""
    try:
        rows = msgspec.json.decode((config_map.get("data") or {}).get(IGNORED) or "[]", type=list[dict[str, str]])
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeError):
        return frozenset()
    return frozenset(row.get("object", "") for row in rows)


def parse_part(config_map: Mapping[str, Any]) -> ShardPart:
    """The part of another shard; a key that cannot be read counts as empty."""
    data = config_map.get("data")
    texts = data if isinstance(data, Mapping) else {}
    return ShardPart(
        applied=str(texts.get(APPLIED) or ""),
        conditions=_rows(texts.get(CONDITIONS), dict[str, str]),
        diagnostics=_rows(texts.get(DIAGNOSTICS), Diagnostic),
        deferred=_rows(texts.get(DEFERRED), dict[str, Any]),
        refusals=_rows(texts.get(REFUSALS), dict[str, Any]),
        shadows=_rows(texts.get(SHADOW), dict[str, Any]),
    )


def _rows(text: object, kind: type[_Row]) -> tuple[_Row, ...]:
    if not isinstance(text, str):
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[kind, ...])  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return ()


def parse_places(config_map: Mapping[str, Any]) -> dict[str, Place]:
    """Where the documents in force, and some former ones, stand in Git, by ``Kind/name``; empty if invalid, or of an
    older version.
    """
    try:
        return msgspec.json.decode((config_map.get("data") or {}).get(PLACES) or "{}", type=dict[str, Place])
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeError):
        return {}


def prune_base(config_map: Mapping[str, Any]) -> str:
    """The revision after which commits may confirm a deletion: the one before the deletion became pending, else the
    one in force; empty if unknown.
    """
    data = config_map.get("data") or {}
    return str(data.get(PRUNE_BASE) or data.get(APPLIED) or "")


def inventory_text(keys: Iterable[ObjectKey]) -> str:
    """Return the inventory as JSON; equal inventories give equal text."""
    groups: dict[str, dict[str, list[str]]] = {}
    for key in sorted(keys):
        groups.setdefault(f"{key.api_version}|{key.kind}", {}).setdefault(key.namespace, []).append(key.name)
    return msgspec.json.encode(groups, order="deterministic").decode()

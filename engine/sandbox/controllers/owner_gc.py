"""Delete objects whose owners are all gone, for API servers without a garbage collector (the sandbox's own has one)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from belay.engine.workloads.writes import Json, Reconciled, Write


class OwnerKey(msgspec.Struct, frozen=True, order=True):
    """An owner as a reference names it; ``namespace`` is that of the object that refers to it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def owners(candidates: Iterable[Json]) -> list[OwnerKey]:
    """Every distinct owner of the candidates, to be looked up."""
    found = set()
    for candidate in candidates:
        meta = candidate["metadata"]
        for r in meta.get("ownerReferences") or ():
            found.add(
                OwnerKey(
                    str(r["apiVersion"]),
                    str(r["kind"]),
                    str(meta.get("namespace") or ""),
                    str(r["name"]),
                    str(r["uid"]),
                )
            )
    return sorted(found)


def reconcile(candidates: Iterable[Json], dead: Collection[str]) -> Reconciled:
    """Delete the candidates of which every owner's uid is in ``dead``."""
    writes = []
    for candidate in candidates:
        meta = candidate["metadata"]
        references = meta.get("ownerReferences") or ()
        if references and not meta.get("deletionTimestamp") and all(r["uid"] in dead for r in references):
            body = {"apiVersion": candidate["apiVersion"], "kind": candidate["kind"]}
            writes.append(
                Write(
                    "delete",
                    str(candidate["kind"]),
                    str(meta.get("namespace") or ""),
                    meta["name"],
                    body,
                    str(meta["uid"]),
                )
            )
    return Reconciled(tuple(writes))
